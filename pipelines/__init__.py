"""Config, KFP pipeline, local runner and command line."""
