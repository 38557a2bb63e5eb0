"""Small helpers without dependencies: extras, digests, errors of other libraries."""
