#!/bin/bash
# As kubernetes/dockerfiles/spark/entrypoint.sh of Spark 4.0, which pip's pyspark lacks
set -e
export SPARK_HOME=/usr/local/lib/python3.11/dist-packages/pyspark PYSPARK_PYTHON=${PYSPARK_PYTHON:-python3} PYSPARK_DRIVER_PYTHON=${PYSPARK_DRIVER_PYTHON:-python3}
export JAVA_HOME=${JAVA_HOME:-/usr/lib/jvm/java-17-openjdk-amd64}
if ! whoami >/dev/null 2>&1 && [ -w /etc/passwd ]; then echo "spark:x:$(id -u):0:spark:$SPARK_HOME:/bin/false" >> /etc/passwd; fi
CP="$SPARK_HOME/jars/*"
mapfile -t OPTS < <(env | grep SPARK_JAVA_OPT_ | sort -t_ -k4 -n | sed 's/[^=]*=\(.*\)/\1/')
[ -z "$SPARK_EXTRA_CLASSPATH" ] || CP="$CP:$SPARK_EXTRA_CLASSPATH"
[ -z "$SPARK_CONF_DIR" ] || CP="$SPARK_CONF_DIR:$CP"
CP="$CP:$PWD"
case "$1" in
  driver) shift; CMD=("$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@");;
  executor) shift; CMD=("$JAVA_HOME/bin/java" "${OPTS[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$CP:$SPARK_DIST_CLASSPATH"
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID"
    --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME");;
  *) exec "$@";;
esac
exec /usr/bin/tini -s -- "${CMD[@]}"
