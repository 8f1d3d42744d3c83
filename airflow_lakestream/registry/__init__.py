"""Schemas by id, from any registry with the API of Confluent's."""
