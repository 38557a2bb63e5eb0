"""A training step on several pods: a TrainJob of Kubeflow Trainer, its launcher, its workers."""
