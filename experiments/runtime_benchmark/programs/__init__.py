"""What the processes of a measurement run, one to a core; each is started by `processes`."""
