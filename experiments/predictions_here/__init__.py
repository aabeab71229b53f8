"""The predicted step of runs on this machine beside the measured one."""
