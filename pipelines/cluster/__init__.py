"""Pipeline on a Kubeflow cluster: compilation, checks, submission, schedules."""
