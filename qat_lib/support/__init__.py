"""Small helpers below everything else: extras, digests, errors of other libraries."""
