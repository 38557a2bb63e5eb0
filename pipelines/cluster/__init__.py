"""The pipeline on a Kubeflow cluster: compiled, checked, sent, scheduled."""
