"""Folders in object stores, HDFS and on disks: files are written as a whole, or created only if missing."""
