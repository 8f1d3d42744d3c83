"""The official provider's `kafka` connection, as plain librdkafka configuration."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException, mask_secret

from airflow_lakestream.config.arguments import problem_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connection_of
from airflow_lakestream.registry.config import RegistryConfig, is_client_setting


class KafkaHook(KafkaBaseHook):
    """Reads a `kafka` connection like the official provider, so SASL, TLS, OAUTHBEARER and MSK IAM work.

    The base class is the provider's base hook: the provider's consumer hook subscribes, and no code here may subscribe.
    """

    def __init__(self, kafka_conn_id: str = KafkaBaseHook.default_conn_name) -> None:
        super().__init__(kafka_config_id=kafka_conn_id)  # type: ignore[no-untyped-call]  # the provider has no types here

    def configuration(self) -> dict[str, Any]:
        """Return librdkafka's configuration, without the settings of a schema registry.

        Raises InvalidArgument for a missing, empty or unusable connection.
        """
        config = {key: value for key, value in self._whole_configuration().items() if not is_client_setting(key)}
        # Airflow masks passwords and secrets by name, but not the setting of a private key.
        if key := config.get("ssl.key.pem"):
            mask_secret(key)
        return config

    def registry(self) -> RegistryConfig | None:
        """Return the schema registry in the connection's extra, or None without one. Raises InvalidArgument."""
        return RegistryConfig.from_client_settings(self._whole_configuration())

    def _whole_configuration(self) -> dict[str, Any]:
        """Return the connection's settings of librdkafka and of the schema registry. Raises InvalidArgument."""
        remedy = 'Add one of type kafka with an extra such as {"bootstrap.servers": "broker:9092"}.'
        connection = connection_of("kafka_conn_id", self.kafka_config_id, remedy)
        has_login = bool(connection.login or connection.password)
        unusable = f"connection {self.kafka_config_id!r} can't be used:"
        if mistake := problem_of(connection.extra_dejson or {}, has_login=has_login):
            problem, remedy = mistake
            raise InvalidArgument("kafka_conn_id", f"{unusable} {problem}", remedy)
        try:
            config: dict[str, Any] = self.get_conn
        except (ValueError, TypeError, AttributeError, ImportError, AirflowOptionalProviderFeatureException) as e:
            raise InvalidArgument("kafka_conn_id", f"{unusable} {e}") from e
        return config

    @property
    def where(self) -> str:
        """The connection's name for errors."""
        return f"Kafka connection {self.kafka_config_id!r}"

    def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
        # The provider's `get_conn` returns the result of this method, in all versions; no client is wanted here.
        return config
