"""The stages that tests have compiled in this process, whichever ranks and runs ask for them."""

from jaxpipe.runtime.stage.compile_once import CompileOnce

compile_stage_once = CompileOnce()


def forget() -> None:
    """Compile each stage again when it is asked for next."""
    compile_stage_once.forget()
