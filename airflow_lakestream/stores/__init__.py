"""Folders in object stores and on this machine: files are written as a whole, or created only if missing."""
