// What the table held when supervise_lakestream last looked: files, snapshots, and samples of rejected records. All that is
// from a record is shown as text.
import { Ago, Bundled, Fragment, Link, dagPath, figure, h, runPath, when } from "./common.js";

const BUNDLED = "supervise_lakestream";
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
const size = (bytes) => {
  if (bytes === null) return "not known";
  const unit = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${figure(Number((bytes / 1024 ** unit).toFixed(1)))} ${UNITS[unit]}`;
};
const known = (value) => figure(value) || "not known";

const Files = ({ files, snapshots }) => h("dl", null, [
  ["Data files", known(files.data_files)],
  ["Size", size(files.bytes)],
  ["Size of a file", files.bytes !== null && files.data_files ? size(files.bytes / files.data_files) : "not known"],
  ["Small files", known(files.small_files)],
  ["Delete files", known(files.delete_files)],
  ["Last compaction", files.compacted_at ? when(files.compacted_at) : "not known"],
  ["Rows in data files", known(files.rows)],
  ["Snapshots", known(snapshots.count)],
].map(([name, content]) => h("div", { key: name }, h("dt", null, name), h("dd", null, content))));

const Snapshots = ({ snapshots }) => h("table", { role: "table" },
  h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["Committed", "By", "Operation", "Rows", "Snapshot"].map((label) =>
    h("th", { key: label, role: "columnheader", scope: "col" }, label)))),
  h("tbody", { role: "rowgroup" }, snapshots.newest.map((one) => {
    const cell = (label, content) => h("td", { role: "cell", "data-label": label }, content);
    return h("tr", { key: one.snapshot_id, role: "row" }, cell("Committed", when(one.at)),
      cell("By", one.kind === "landing" ? `landing of ${one.consumer_group}` : one.kind), cell("Operation", one.operation),
      cell("Rows", figure(one.rows)), cell("Snapshot", one.snapshot_id));
  })));

const Sample = ({ sample }) => h("li", null, `${sample.topic}[${sample.partition}] offset ${figure(sample.offset)}: `,
  h("code", null, sample.error), h("br"), "Value",
  sample.value === null ? " is null" : h(Fragment, null, ` of ${figure(sample.bytes)} bytes: `, h("code", null, sample.value)));

const Rejects = ({ rejects }) => {
  if (rejects.count === 0) return h("p", { className: "muted" }, "No rejected record counts.");
  const left = rejects.kinds - rejects.reasons.length;
  return h(Fragment, null,
    h("p", null, `${figure(rejects.count)} rejected records count. `,
      rejects.looked_at === 0 ? "The files that were looked at contain none of them." : rejects.looked_at < rejects.count ? `Of the newest ${figure(rejects.looked_at)} these are the reasons:` : "The reasons:"),
    rejects.reasons.map((one, n) => h(Fragment, { key: n },
      h("h3", null, `${figure(one.records)} at stage ${one.stage}: `, h("code", null, one.reason)),
      h("ul", null, one.samples.map((sample, m) => h(Sample, { key: m, sample }))))),
    left > 0 ? h("p", { className: "muted" }, `${figure(left)} more reasons: lakestream rejects show lists all.`) : null);
};

export const Contents = ({ report, supervisors: [dag] }) => {
  if (!report) return h("p", { className: "muted" }, "Files, snapshots and rejects are not known: nothing has looked into this table yet. ",
    "The task looks_inside of the DAG ", dag ? h(Link, { to: dagPath(dag) }, dag) : h(Bundled, { text: BUNDLED }), " does it.");
  const task = h(Link, { to: runPath(report, report) }, report.dag_id);
  const seen = report.document;
  return h(Fragment, null, h("h2", null, "Files and snapshots"),
    h("p", { className: report.problem ? "error" : "muted" }, seen ? "As seen by " : report.problem ? "The report of " : "The table could not be looked at by ", task, " ", h(Ago, report),
      report.problem ? ` could not be read: ${report.problem}.` : "."),
    !seen ? null : h(Fragment, null, h(Files, seen), h(Snapshots, seen),
      h("h2", null, "Rejected records"), h(Rejects, seen)));
};
