// The page in Airflow's menu: all streams, or the one that the address names.
import { h, useSearchParams } from "./common.js";
import { StreamList } from "./list.js";
import { OneStream } from "./stream.js";

const address = ({ dag_id: dag, task_id: task, table }) => `?${new URLSearchParams({ dag, task, ...(table ? { table } : {}) })}`;

/** Airflow gives a tab its DAG. */
export const Lakestream = ({ dagId }) => {
  const [asked] = useSearchParams();
  const [dag, task, table] = ["dag", "task", "table"].map((name) => asked.get(name));
  if (dag && task && (!dagId || dag === dagId)) return h(OneStream, { key: `${dag}/${task}/${table}`, dagId: dag, taskId: task, table, back: "?" });
  return h(StreamList, { dagId, to: address });
};
globalThis.Lakestream = Lakestream;
