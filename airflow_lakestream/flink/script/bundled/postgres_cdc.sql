-- A mirror of a table of PostgreSQL: its rows as they are, and then each change, by its key.
SET 'table.local-time-zone' = 'UTC';
CREATE TEMPORARY TABLE changes (
  $columns,
  PRIMARY KEY ($key) NOT ENFORCED
) WITH (
  'connector' = 'postgres-cdc', ${database},
  'schema-name' = '$schema',
  'table-name' = '$source',
  'slot.name' = '$slot',
  'decoding.plugin.name' = 'pgoutput',
  'debezium.publication.name' = '$slot',
  'debezium.publication.autocreate.mode' = 'filtered',
  'scan.incremental.snapshot.enabled' = 'true'
);
CREATE DATABASE IF NOT EXISTS $catalog.$namespace;
CREATE TABLE IF NOT EXISTS $catalog.$table (
  $columns,
  PRIMARY KEY ($key) NOT ENFORCED
) WITH (
  'format-version' = '2',
  'write.upsert.enabled' = 'true'
);
INSERT INTO $catalog.$table SELECT $names FROM changes;
