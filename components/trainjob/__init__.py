"""Training steps on several pods: TrainJob of Kubeflow Trainer, launcher, workers."""
