// Runs of bundled DAGs for one stream: an audit of its table, and a replay of its rejected records. The conf of a run
// comes from the page, which asks whether the user may start runs of the stream's DAG; it is started by Airflow's API.
import { Bundled, Fragment, Link, Waits, WithLink, ask, asking, dagPath, h, send, useSaying, useState } from "./common.js";

const WORDS = {
  audit: { button: "Audit", what: "audit", done: "An audit" },
  replay: { button: "Replay rejects", what: "replay rejected records of", done: "A replay of the rejected records" },
};

const Button = ({ stream, press, more, say }) => {
  const [busy, setBusy] = useState(false);
  const { button, what, done } = WORDS[press];
  const { dag_id: bundled, why_not: whyNot } = stream.buttons[press];
  const work = async () => {
    const forbidden = (dag) => say(`You may not ${what} ${stream.table}: your role has no permission to start runs of ${dag}.`, true);
    const [dag, task] = [stream.dag_id, stream.task_id].map(encodeURIComponent);
    const [start, wrong, status] = await ask(`lakestream/api/streams/${dag}/${task}/presses/${press}${asking(stream.table)}`);
    if (status === 403) return forbidden(stream.dag_id);
    if (wrong) return say(`${bundled} was not started: ${wrong}`, true);
    const [run, refused, answered] = await send(`dags/${encodeURIComponent(bundled)}/dagRuns`, {
      logical_date: null, conf: { ...start.conf, ...more } });
    if (answered === 403) return forbidden(bundled);
    if (refused) return say(`${bundled} was not started: ${refused}`, true);
    const where = `${dagPath(bundled)}/runs/${encodeURIComponent(run.dag_run_id)}`;
    const waits = start.paused ? h(Waits, { dag: bundled }) : "";
    return say(h(Fragment, null, `${done} of ${stream.table} is started: `, h(Link, { to: where }, run.dag_run_id), ".", waits));
  };
  const click = async () => { setBusy(true); say(""); await work(); setBusy(false); };
  return h("button", { type: "button", disabled: busy || whyNot !== null, onClick: click }, button);
};

export const Presses = ({ stream }) => {
  const [full, setFull] = useState(false);
  const [said, say] = useSaying();
  const lacking = Object.keys(WORDS).filter((press) => stream.buttons[press].why_not);
  const why = (press) => {
    const { dag_id: dag, why_not: whyNot, is_there: isThere } = stream.buttons[press];
    const text = `${WORDS[press].button}: ${whyNot}`;
    return isThere ? h(WithLink, { text, dag }) : h(Fragment, null, text, " ", h(Bundled, { text: "The bundled DAGs" }));
  };
  return h("fieldset", null, h("legend", null, "Table"),
    h("div", { className: "tools" },
      h(Button, { stream, press: "audit", more: { full }, say }),
      stream.buttons.audit.why_not ? null : h("label", { className: "check" },
        h("input", { type: "checkbox", checked: full, onChange: (e) => setFull(e.target.checked) }), "Audit reads every row"),
      h(Button, { stream, press: "replay", more: {}, say })),
    lacking.map((press) => h("p", { key: press, className: "muted" }, why(press))),
    said);
};
