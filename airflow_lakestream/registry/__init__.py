"""Schemas by id, from any schema registry with the API of Confluent's."""
