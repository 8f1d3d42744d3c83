-- Clicks by kind and minute: a row for each, once the minute is over for all partitions.
SET 'table.local-time-zone' = 'UTC';
-- A partition without records does not hold back the others for longer.
SET 'table.exec.source.idle-timeout' = '30 s';
CREATE TEMPORARY TABLE clicks (
  `timestamp` TIMESTAMP_LTZ(3),
  event STRING,
  user_id STRING,
  on_site_seconds BIGINT,
  WATERMARK FOR `timestamp` AS `timestamp` - INTERVAL '5' SECOND
) WITH (
  'connector' = 'kafka', ${kafka},
  'topic' = '$topic',
  'properties.group.id' = '$group',
  'properties.isolation.level' = 'read_committed',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'json',
  'json.timestamp-format.standard' = 'ISO-8601'
);
CREATE DATABASE IF NOT EXISTS $catalog.$namespace;
CREATE TABLE IF NOT EXISTS $catalog.$table (
  `minute` TIMESTAMP_LTZ(6),
  event STRING,
  clicks BIGINT,
  users BIGINT,
  on_site_seconds BIGINT
);
INSERT INTO $catalog.$table
SELECT CAST(window_start AS TIMESTAMP_LTZ(6)), event, COUNT(*), COUNT(DISTINCT user_id), SUM(on_site_seconds)
FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(`timestamp`), INTERVAL '1' MINUTE))
GROUP BY window_start, window_end, event;
