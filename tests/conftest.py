"""Check shapes and types at run time: every annotated function of these packages, in tests only."""

from jaxtyping import install_import_hook

install_import_hook(["models", "jaxpipe.runtime", "jaxpipe.comm"], typechecker="beartype.beartype")
