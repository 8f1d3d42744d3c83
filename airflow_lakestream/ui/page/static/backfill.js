// Runs for an interval of the past: first which ones they are, then they are started. Both by Airflow's own API.
import { Fragment, Link, figure, h, send, useSaying, useState, when } from "./common.js";

// Of the runs so many are named.
const NAMED = 10;
const BEHAVIOURS = [["none", "leave them"], ["failed", "run failed ones again"], ["completed", "run all again"]];
const utc = (at) => at.toISOString().slice(0, 16);
const time = (at) => `${when(at, "UTC")} UTC`;
const yesterday = () => {
  const start = new Date();
  start.setUTCHours(0, 0, 0, 0);
  return [utc(new Date(start.getTime() - 86400000)), utc(start)];
};

const Field = ({ label, ...rest }) => h("label", null, label, h("input", { type: "datetime-local", required: true, ...rest }));

/** Which runs they are: the first and the last ones, with how many there are. */
const Which = ({ runs }) => {
  const named = runs.length <= NAMED ? runs : [...runs.slice(0, NAMED - 1), null, runs[runs.length - 1]];
  return h("ul", null, named.map((at, n) => h("li", { key: n }, at === null ? `${figure(runs.length - NAMED)} more` : time(at))));
};

export const Backfill = ({ stream }) => {
  const [[from, until], setInterval] = useState(yesterday);
  const [behaviour, setBehaviour] = useState("none");
  const [runs, setRuns] = useState(null);
  const [busy, setBusy] = useState(false);
  const [said, say] = useSaying();
  const dag = stream.dag_id;
  const change = (set) => (value) => { setRuns(null); say(""); set(value); };
  const press = async (event, path, done) => {
    event.preventDefault();
    setBusy(true);
    const [answer, wrong, status] = await send(path, {
      dag_id: dag, from_date: `${from}:00Z`, to_date: `${until}:00Z`, reprocess_behavior: behaviour });
    setBusy(false);
    if (status === 403) say(`You may not backfill ${dag}: your role has no permission for it.`, true);
    else if (wrong) say(`${dag} is not backfilled: ${wrong}`, true);
    else done(answer);
  };
  const look = (event) => press(event, "backfills/dry_run", ({ backfills }) => {
    setRuns(backfills.map((one) => one.logical_date ?? one.partition_date));
    say(backfills.length === 0 ? "No run would be started: the schedule has none then, or all of them are there." : "");
  });
  const start = (event) => press(event, "backfills", () => {
    setRuns(null);
    const where = h(Link, { to: `/dags/${encodeURIComponent(dag)}/backfills` }, "backfills");
    say(h(Fragment, null, `A backfill of ${dag} is started: ${count(runs)}. It is among its `, where, "."));
  });
  if (stream.no_backfill) return h("p", { className: "muted" }, `No backfill: ${stream.no_backfill}`);
  return h("form", { onSubmit: look }, h("fieldset", { disabled: busy }, h("legend", null, "Backfill"),
    h("div", { className: "tools" },
      h(Field, { label: "From (UTC)", value: from, onChange: (e) => change((value) => setInterval([value, until]))(e.target.value) }),
      h(Field, { label: "Until (UTC)", value: until, onChange: (e) => change((value) => setInterval([from, value]))(e.target.value) }),
      h("label", null, "Runs that exist", h("select", { value: behaviour, onChange: (e) => change(setBehaviour)(e.target.value) },
        BEHAVIOURS.map(([value, text]) => h("option", { key: value, value }, text)))),
      h("button", { type: "submit" }, "Which runs?")),
    runs && runs.length > 0 ? h(Fragment, null, h("p", null, `${count(runs)} would be started, with these logical dates:`),
      h(Which, { runs }), h("button", { type: "button", onClick: start }, `Start ${count(runs)}`)) : null,
    said));
};
const count = (runs) => `${figure(runs.length)} run${runs.length === 1 ? "" : "s"}`;
