"""One run on this machine: its folder, its processes, its result."""
