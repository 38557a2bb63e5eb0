"""What to run and where: the config, the KFP pipeline, the local runner, and the command line."""
