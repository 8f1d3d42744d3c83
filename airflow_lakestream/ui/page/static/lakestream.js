// The page in Airflow's menu: all streams, or the one that the address names.
import { h, useSearchParams } from "./common.js";
import { StreamList } from "./list.js";
import { OneStream } from "./stream.js";

const address = (stream) => `?${new URLSearchParams({ dag: stream.dag_id, task: stream.task_id })}`;

/** Airflow gives a tab its DAG. */
export const Lakestream = ({ dagId }) => {
  const [asked] = useSearchParams();
  const [dag, task] = [asked.get("dag"), asked.get("task")];
  if (dag && task && (!dagId || dag === dagId)) return h(OneStream, { key: `${dag}/${task}`, dagId: dag, taskId: task, back: "?" });
  return h(StreamList, { dagId, to: address });
};
globalThis.Lakestream = Lakestream;
