// All streams in one table, the worst first.
import { Ago, Bundled, Fragment, Link, WithLink, dagPath, State, age, css, figure, h, nameOf, runPath, scheduleOf, span, tableOf, useAnswer, useMemo, useSaying, useState, when } from "./common.js";
import { RunNow } from "./run.js";

const STATES = ["broken", "failing", "stalled", "could not look", "behind", "landing", "idle", "new", "paused"];
const value = (stream, what, name) => stream.supervised?.looks[what]?.value?.[name] ?? null;
// Kafka's answer is newer than the lag that the last run left, if a DAG looks at the stream.
export const lagOf = (stream) => {
  const seen = value(stream, "lag", "lag");
  const newer = stream.landing && stream.supervised && Date.parse(stream.landing.at) > Date.parse(stream.supervised.at);
  return seen === null || newer ? stream.landing?.lag ?? seen : seen;
};
// Rejected records of the table that were not landed again.
const openRejects = (stream) => stream.supervised?.open_rejects ?? 0;
// A figure of the last landing, or null if it is unknown: a report that could not be read has none.
const landed = (stream, name) => (stream.landing?.problem ? null : stream.landing?.[name] ?? null);
export const leftOf = (stream) => value(stream, "retention", "time_left");

const sum = (rows) => rows.reduce((all, one) => all + one, 0);

const COLUMNS = [
  ["Stream", (s) => `${nameOf(s)} ${tableOf(s)}`],
  ["State", (s) => STATES.indexOf(s.state)],
  ["Engine", (s) => s.engine],
  ["Lag", lagOf, "figure"],
  ["Last landing", (s) => (s.landing ? -Date.parse(s.landing.at) : null)],
  ["Rows", (s) => landed(s, "rows"), "figure"],
  ["Rows an hour", (s) => (s.hours ? sum(s.hours) : null), "figure"],
  ["Rejected then", (s) => openRejects(s) || landed(s, "rejected"), "figure"],
  ["Time left in Kafka", leftOf, "figure"],
  ["Next run", (s) => (s.next_run ? Date.parse(s.next_run) : null)],
];
// What is unknown comes last, whichever way.
const compare = (key, down) => (a, b) => {
  const [x, y] = [key(a), key(b)];
  if (x === null || y === null) return (x === null) - (y === null);
  return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
};

/** The rows of the last day by the hour; the last bar is the hour that is on. */
const ByHour = ({ hours }) => {
  if (hours === undefined) return "";
  if (hours === null) return h("span", { className: "muted", title: "A run that goes on reports only its sum." }, "goes on");
  const most = Math.max(...hours);
  const text = most === 0 ? "No rows in the last day" : `${figure(sum(hours))} rows in the last day, at most ${figure(most)} in an hour`;
  const tall = (rows) => (rows === 0 ? 0 : Math.max(2, (20 * rows) / most));
  return h("svg", { className: "spark", viewBox: "0 0 96 20", preserveAspectRatio: "none", role: "img", "aria-label": text },
    h("title", null, text), h("rect", { className: "f-line", x: 0, y: 19, width: 96, height: 1 }),
    hours.map((rows, n) => h("rect", { key: n, className: "f-rows", x: n * 4, width: 3, y: 20 - tall(rows), height: tall(rows) })));
};

const Row = ({ stream, to, say }) => {
  const why = stream.why.find((one) => one.text);
  const cell = (label, content, className) => h("td", { role: "cell", "data-label": label, className }, content);
  return h("tr", { role: "row" },
    cell("", h(Fragment, null, stream.engine ? h(Link, { to: to(stream) }, nameOf(stream), " → ", tableOf(stream)) : h("strong", null, "Pipeline"),
      h("div", { className: "muted" }, h(Link, { to: dagPath(stream.dag_id) }, stream.dag_id),
        stream.tags.map((tag) => h("span", { key: tag, className: "tag" }, tag))))),
    cell("State", h(Fragment, null, h(State, stream), why ? h("div", { className: "muted" }, why.text) : null)),
    cell("Engine", stream.engine),
    cell("Lag", figure(lagOf(stream)), "figure"),
    cell("Last landing", stream.landing ? h(Link, { to: runPath(stream, stream.landing) }, h(Ago, stream.landing)) : "none"),
    cell("Rows", stream.landing?.problem ? h("span", { className: "error", title: stream.landing.problem }, "could not be read") : figure(landed(stream, "rows")), "figure"),
    cell("Rows an hour", h(ByHour, stream), "figure"),
    cell("Rejected then", h(Fragment, null, figure(landed(stream, "rejected")),
      openRejects(stream) ? h("div", { className: "muted" }, `${figure(openRejects(stream))} open`) : null), "figure"),
    cell("Time left in Kafka", span(leftOf(stream)), "figure"),
    cell("Next run", stream.next_run ? h("span", { title: when(stream.next_run) }, next(stream.next_run)) : h("span", { className: "whole" }, scheduleOf(stream))),
    // A run of a broken pipeline would fail.
    cell("", stream.state === "broken" ? "" : h(RunNow, { stream, say })));
};
const next = (at) => (age(at) < 0 ? `in ${span(-age(at))}` : "due");

const Nobody = ({ supervisors: [dag], add_supervision: command }) => (dag ? h(WithLink, { dag, text: `Nobody has looked at lag in Kafka yet: list your streams in the Airflow variable lakestream_streams, and run the DAG ${dag}.` })
  : h(Fragment, null, "Nobody looks at lag in Kafka: ", h(Bundled, { text: "add supervise_lakestream to your DAGs" }), " by ", h("code", null, command), ", and list your streams in the Airflow variable lakestream_streams."));

const Choice = ({ label, all, chosen, choose }) => h("label", null, label,
  h("select", { value: chosen, onChange: (e) => choose(e.target.value) },
    h("option", { value: "" }, "all"), all.map((one) => h("option", { key: one, value: one }, one))));

export const StreamList = ({ dagId, to }) => {
  const [{ answer, wrong }, again] = useAnswer("lakestream/api/streams");
  // After the list, which does not wait for it; it is the same for a minute.
  const [{ answer: byHour }] = useAnswer(answer ? "lakestream/api/hours" : "", 300);
  const [find, setFind] = useState("");
  const [state, setState] = useState("");
  const [engine, setEngine] = useState("");
  const [sort, setSort] = useState({ column: 1, down: false });
  const [said, say] = useSaying();
  const mine = useMemo(() => {
    const place = (one) => JSON.stringify([one.dag_id, one.task_id, one.table]);
    const hours = Object.fromEntries((byHour?.streams ?? []).map((one) => [place(one), one.rows]));
    // What no report names is under no table.
    const of = (s) => (place(s) in hours ? hours[place(s)] : hours[place({ ...s, table: null })]);
    return (answer?.streams ?? []).filter((s) => !dagId || s.dag_id === dagId).map((s) => ({ ...s, hours: of(s) }));
  }, [answer, byHour, dagId]);
  const shown = useMemo(() => {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (s) => {
      const text = [s.dag_id, s.task_id, nameOf(s), tableOf(s), s.consumer_group, s.engine, s.state, ...s.tags].join(" ").toLowerCase();
      return (!state || s.state === state) && (!engine || s.engine === engine) && words.every((word) => text.includes(word));
    };
    return mine.filter(fits).sort(compare(COLUMNS[sort.column][1], sort.down));
  }, [mine, find, state, engine, sort]);
  const press = (column) => setSort((before) => ({ column, down: before.column === column && !before.down }));
  const engines = [...new Set(mine.map((s) => s.engine).filter(Boolean))].sort();
  const seen = mine.map((s) => s.supervised).filter(Boolean).sort((a, b) => (a.at < b.at ? -1 : 1)).pop();
  return h("div", { className: "ls" }, h("style", null, css), h("h1", null, "Streams"),
    h("div", { className: "tools", role: "search" },
      h("label", null, "Search", h("input", { type: "search", value: find, onChange: (e) => setFind(e.target.value) })),
      h(Choice, { label: "State", all: STATES, chosen: state, choose: setState }),
      h(Choice, { label: "Engine", all: engines, chosen: engine, choose: setEngine }),
      h("button", { type: "button", onClick: again }, "Look again")),
    wrong ? h("p", { role: "alert", className: "error" }, wrong) : null, said,
    answer?.problems.map((one) => h("p", { key: one, className: "error" }, one)),
    answer && mine.length === 0 ? h("p", { className: "muted" }, dagId ? "This DAG has no task that lands a topic."
      : "There is no DAG that lands a topic, or none that you may read.") : answer ? h("p", { className: "muted" }, `${figure(shown.length)} of ${figure(mine.length)} streams. `,
      seen ? h(Fragment, null, "Lag and time left were last looked at by ", h(Link, { to: dagPath(seen.dag_id) }, seen.dag_id), " ", h(Ago, seen), ".")
        : h(Nobody, answer)) : wrong ? null : h("p", null, "Loading ..."),
    shown.length === 0 ? null : h("table", { role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, COLUMNS.map(([label, , className], n) => h("th", {
        key: label, role: "columnheader", scope: "col", className,
        "aria-sort": sort.column === n ? (sort.down ? "descending" : "ascending") : "none",
      }, h("button", { type: "button", onClick: () => press(n) }, label, sort.column === n ? (sort.down ? " ↓" : " ↑") : ""))),
      h("th", { role: "columnheader", scope: "col" }, "Act"))),
      h("tbody", { role: "rowgroup" }, shown.map((stream) => h(Row, { key: `${stream.dag_id}/${stream.task_id}/${stream.table}`, stream, to, say })))));
};
