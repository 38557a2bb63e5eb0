"""The pipeline's steps: one file each, a plain function and its thin KFP component."""
