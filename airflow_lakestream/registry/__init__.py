"""Schemas by their ids, from any registry that speaks the API of Confluent's."""
