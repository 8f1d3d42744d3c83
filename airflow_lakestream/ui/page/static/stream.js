// One stream: what it is doing and what to do, its offsets by partition, its landings and changes of its schema.
import { Ago, Fragment, Link, State, css, asking, dagPath, docs, figure, h, nameOf, runPath, scheduleOf, span, tableOf, useAnswer, useSaying, when } from "./common.js";
import { RunNow } from "./run.js";
import { Backfill } from "./backfill.js";
import { Contents } from "./contents.js";
import { lagOf, leftOf } from "./list.js";
import { Presses } from "./presses.js";

// Of a bar: its length in the drawing's own units, and the least length that is still seen.
const LONG = 1000, LEAST = 3;

const Bar = ({ bar }) => {
  const all = [...bar.landed, ...bar.lost];
  const [from, until] = [Math.min(...all.map((r) => r[0])), Math.max(...all.map((r) => r[1]))];
  const scale = LONG / Math.max(1, until - from);
  const parts = (ranges, kind) => ranges.map(([a, b]) => h("rect", {
    key: `${kind} ${a}`, className: `f-${kind}`, x: Math.min((a - from) * scale, LONG - LEAST), y: 0, height: 14,
    width: Math.max(LEAST, (b - a) * scale) }, h("title", null, `${kind}: ${figure(a)} to ${figure(b)}`)));
  const named = (ranges, one, many) => (ranges.length === 0 ? "" : ` ${ranges.length === 1 ? one : many}: `
    + ranges.slice(0, 5).map(([a, b]) => `${figure(a)} to ${figure(b)}`).join(", ") + (ranges.length > 5 ? " and more" : "") + ".");
  const text = `${bar.topic}[${bar.partition}] ${figure(from)} to ${figure(until)}.${named(bar.holes, "Hole", "Holes")}${named(bar.lost, "Lost", "Lost")}`;
  return h("div", null, h("div", { className: bar.lost.length ? "error" : "" }, text),
    h("svg", { className: "bar", viewBox: `0 0 ${LONG} 14`, preserveAspectRatio: "none", role: "img", "aria-label": text },
      parts(bar.landed, "landed"), parts(bar.holes, "hole"), parts(bar.lost, "lost")));
};

const newest = (count) => (count === 1 ? "the last landing" : `the last ${figure(count)} landings`);

const Rows = ({ landings }) => {
  // A report that could not be read has no rows to draw.
  const shown = landings.filter((one) => !one.problem).slice(0, 60).reverse();
  if (shown.length === 0) return null;
  const top = Math.max(1, ...shown.map((one) => one.rows));
  const text = `Rows of ${newest(shown.length)}, the newest on the right, at most ${figure(top)}`;
  return h(Fragment, null, h("div", { className: "muted" }, text), h("svg", {
    className: "bar", style: { height: "48px" }, viewBox: "0 0 600 48", preserveAspectRatio: "none", role: "img", "aria-label": text,
  }, shown.map((one, n) => h("rect", {
    key: n, className: "f-rows", x: n * 10 + 1, width: 8, y: 48 - Math.max(1, (48 * one.rows) / top), height: Math.max(1, (48 * one.rows) / top),
  }, h("title", null, `${when(one.at)}: ${figure(one.rows)} rows`)))));
};

const Facts = ({ stream }) => h("dl", null, [
  ["DAG", h(Link, { to: dagPath(stream.dag_id) }, stream.dag_id)],
  ["Task", stream.task_id], ["Engine", stream.engine], ["Consumer group", stream.consumer_group],
  ["Lag", figure(lagOf(stream)) || "not known"],
  ["Last landing", stream.landing ? h(Ago, stream.landing) : "none"],
  ["Newest run", stream.newest_run ? h(Link, { to: runPath(stream, stream.newest_run) }, stream.newest_run.state || "waits") : "none"],
  ["Next run", when(stream.next_run) || scheduleOf(stream) || "none: the DAG is paused"],
  ["Time left in Kafka", span(leftOf(stream)) || "not known"],
  ["Looked at", stream.supervised ? h(Ago, stream.supervised) : "never"],
].map(([name, content]) => h("div", { key: name }, h("dt", null, name), h("dd", null, content))));

const Why = ({ stream }) => h(Fragment, null, stream.why.map((one, n) => h("div", { key: n },
  h("p", null, one.text),
  one.advice ? h(Fragment, null, h("h3", null, `What to do: ${one.advice.title}`),
    h("ol", null, one.advice.steps.map((step) => h("li", { key: step }, step))),
    h("p", null, h("a", { href: docs(`runbook.html#${one.advice.anchor}`) }, "More in the runbook"))) : null)));

const Landings = ({ stream }) => h("table", { role: "table" },
  h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["When", "Rows", "Rejected", "Skipped", "Left", "Snapshot", "Run"].map((label) =>
    h("th", { key: label, role: "columnheader", scope: "col" }, label)))),
  h("tbody", { role: "rowgroup" }, stream.landings.map((one) => {
    const cell = (label, content, colSpan = 1) => h("td", { role: "cell", "data-label": label, colSpan }, content);
    return h("tr", { key: `${one.run_id} ${one.map_index}`, role: "row" }, cell("When", when(one.at)),
      one.problem ? cell("Rows", h("span", { className: "error" }, `could not be read: ${one.problem}`), 5) : h(Fragment, null,
        cell("Rows", figure(one.rows)), cell("Rejected", figure(one.rejected)), cell("Skipped", figure(one.skipped)), cell("Left", figure(one.lag)),
        cell("Snapshot", one.snapshot_id || "")), cell("Run", h(Link, { to: runPath(stream, one) }, one.run_id)));
  })));

export const OneStream = ({ dagId, taskId, table, back }) => {
  const [{ answer, wrong }, again] = useAnswer(`lakestream/api/streams/${encodeURIComponent(dagId)}/${encodeURIComponent(taskId)}${asking(table)}`);
  const [said, say] = useSaying();
  const changes = (answer?.landings ?? []).flatMap((one) => one.schema_changes.map((text) => ({ at: one.at, text })));
  return h("div", { className: "ls" }, h("style", null, css),
    h("p", null, h(Link, { to: back }, "All streams")),
    wrong ? h("p", { role: "alert", className: "error" }, wrong) : null,
    !answer ? (wrong ? null : h("p", null, "Loading ...")) : h(Fragment, null,
      h("h1", null, nameOf(answer), " → ", tableOf(answer)),
      h("div", { className: "tools" }, h(State, answer), h(RunNow, { stream: answer, say }), h("button", { type: "button", onClick: again }, "Look again")),
      said, h(Why, { stream: answer }), h(Facts, { stream: answer }), h(Backfill, { stream: answer }), h(Presses, { stream: answer }),
      h("h2", null, "Offsets"),
      answer.offsets.length === 0 ? h("p", { className: "muted" }, answer.landings.length === 0 ? "No landing is known yet." : "No landing has reported offsets that can be read.") : h(Fragment, null,
        h("p", { className: "muted" }, `Of ${newest(answer.landings.length)}.`, h("span", { className: "key landed" }), "landed",
          h("span", { className: "key hole" }), "hole", h("span", { className: "key lost" }), "lost"),
        answer.offsets.map((bar) => h(Bar, { key: `${bar.topic} ${bar.partition}`, bar }))),
      changes.length === 0 ? null : h(Fragment, null, h("h2", null, "Changes of the schema"),
        h("ul", null, changes.map((one, n) => h("li", { key: n }, `${when(one.at)}: ${one.text}`)))),
      h(Contents, { report: answer.contents, supervisors: answer.supervisors }),
      answer.landings.length === 0 ? null : h(Fragment, null, h("h2", null, "Landings"),
        h(Rows, { landings: answer.landings }), h(Landings, { stream: answer }))));
};
