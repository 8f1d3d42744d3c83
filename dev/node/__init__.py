"""A real Kubernetes of one node, without Docker: its programs and the image are made once, in a cache of the user's."""
