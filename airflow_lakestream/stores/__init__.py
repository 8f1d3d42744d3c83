"""Folders of object stores and of this machine: files written as a whole, or only where there is none."""
