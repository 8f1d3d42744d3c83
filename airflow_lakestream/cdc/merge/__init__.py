"""Merge of a batch of events into a mirror's table. Arrow in, Arrow out."""
