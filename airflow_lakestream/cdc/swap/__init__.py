"""A mirror whose rows were read anew, aside: all of them replaced in one commit."""
