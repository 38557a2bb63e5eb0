"""The pipeline's steps: one function and thin KFP component per file."""
