"""Whether `jaxpipe verify` finds planted errors, and none where there is none."""
