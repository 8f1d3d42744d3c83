// What the views share. Written by hand, without a build: React and the router are Airflow's own, and colours are its
// CSS variables, so that the page follows light and dark.
export const { createElement: h, Fragment, useCallback, useEffect, useMemo, useRef, useState } = globalThis.React;
export const { Link, useSearchParams } = globalThis.ReactRouterDOM;

const base = new URL(document.baseURI).pathname;
const color = (name) => `var(--chakra-colors-${name})`;

export const css = `
.ls{container-type:inline-size;padding:16px;color:${color("fg")};font-size:14px;line-height:1.5;width:100%;height:100%;overflow-y:auto}
.ls h1{font-size:20px;font-weight:600}.ls h2{font-size:16px;font-weight:600;margin:20px 0 6px}.ls h3{font-weight:600;margin:8px 0 2px}
.ls a{color:${color("fg-info")};text-decoration:underline;overflow-wrap:anywhere}
.ls :focus-visible{outline:2px solid ${color("fg-info")};outline-offset:1px}
.ls button,.ls input,.ls select{font:inherit;color:inherit;background:${color("bg")};border:1px solid ${color("border-emphasized")};border-radius:4px;padding:2px 8px;max-width:100%}
.ls button{cursor:pointer;white-space:nowrap;background:${color("bg-muted")}}.ls button:disabled{opacity:.5;cursor:default}
.ls .tools{display:flex;flex-wrap:wrap;gap:8px;align-items:end;margin:10px 0}.ls .tools label{display:flex;flex-direction:column;font-size:12px;color:${color("fg-muted")}}
.ls .tools label.check{flex-direction:row;align-items:center;gap:6px}
.ls fieldset{border:1px solid ${color("border")};border-radius:4px;padding:4px 12px 8px;min-width:0}
.ls .said{min-height:1.5em}.ls .muted{color:${color("fg-muted")}}.ls .error{color:${color("fg-error")}}
.ls table{width:100%;border-collapse:collapse}.ls th{text-align:left;font-weight:500;color:${color("fg-muted")};border-bottom:1px solid ${color("border")};padding:6px 8px;vertical-align:bottom}
.ls th button{background:none;border:0;padding:0;text-align:left;color:inherit}
.ls td{border-bottom:1px solid ${color("border")};padding:6px 8px;vertical-align:top;overflow-wrap:anywhere}
.ls td.figure{text-align:right;white-space:nowrap}.ls th.figure{text-align:right}
.ls time,.ls .whole{white-space:nowrap}.ls .badge{display:inline-block;border:1px solid currentColor;border-radius:4px;padding:0 6px;font-weight:600;font-size:12px}
.ls .broken,.ls .failing,.ls .stalled,.ls .could-not-look{color:${color("fg-error")}}.ls .behind{color:${color("fg-warning")}}.ls .landing{color:${color("fg-success")}}
.ls .idle{color:${color("fg-info")}}.ls .paused,.ls .new{color:${color("fg-muted")}}
.ls dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:8px 16px;margin:10px 0}.ls dt{font-size:12px;color:${color("fg-muted")}}.ls dd{overflow-wrap:anywhere}
.ls .tag{border:1px solid ${color("border-emphasized")};border-radius:4px;padding:0 4px;margin-left:6px;font-size:12px;white-space:nowrap}
.ls fieldset.params label{display:flex;flex-direction:column;gap:2px;margin:6px 0;font-weight:500;white-space:normal}.ls fieldset.params .muted{font-weight:400;font-size:12px}
.ls fieldset.params{border:0}.ls fieldset.params legend{font-size:16px;font-weight:600}
.ls dialog{margin:auto;width:min(560px,95vw);max-height:90vh;overflow-y:auto;background:${color("bg")};color:inherit;border:1px solid ${color("border")};border-radius:4px;padding:12px;text-align:left;white-space:normal}.ls dialog::backdrop{background:rgb(0 0 0/.5)}
.ls textarea{font:inherit;color:inherit;background:${color("bg")};border:1px solid ${color("border-emphasized")};border-radius:4px;padding:2px 8px}
.ls code{font-family:monospace;font-size:12px;overflow-wrap:anywhere;white-space:pre-wrap;unicode-bidi:isolate}
.ls ol{padding-left:20px;list-style:decimal}.ls ul{padding-left:20px;list-style:disc}
.ls svg.bar{display:block;width:100%;height:14px;background:${color("bg-muted")}}
.ls svg.spark{display:inline-block;width:96px;height:20px;vertical-align:middle}
.ls .f-line{fill:${color("border-emphasized")}}.ls .f-landed{fill:${color("fg-success")}}.ls .f-lost{fill:${color("fg-error")}}.ls .f-hole{fill:${color("fg-info")}}.ls .f-rows{fill:${color("fg-info")}}
.ls .key{display:inline-block;width:10px;height:10px;margin:0 4px 0 12px}.ls .key.landed{background:${color("fg-success")}}.ls .key.lost{background:${color("fg-error")}}.ls .key.hole{background:${color("fg-info")}}
@container (max-width:60em){
.ls table,.ls tbody,.ls tr,.ls td{display:block}.ls thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.ls tr{border-bottom:2px solid ${color("border")};padding:8px 0}.ls td,.ls td.figure{border:0;padding:1px 0;text-align:left;white-space:normal}
.ls td:empty{display:none}
.ls td[data-label]:not([data-label=""])::before{content:attr(data-label) ": ";color:${color("fg-muted")}}}
`;

/** Ask Airflow. Returns [answer, error]; an error is a sentence for the reader. */
export const ask = async (path, options = {}) => {
  let answer;
  try {
    answer = await fetch(base + path, { headers: { Accept: "application/json", ...options.headers }, ...options });
  } catch {
    return [null, "Airflow does not answer. Is its API server up?", 0];
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok) return [body, "", answer.status];
  if (answer.status === 401) return [null, "You are not logged in any more: load the page again.", 401];
  const detail = body && typeof body.detail === "string" ? body.detail : answer.statusText;
  return [null, `${detail} (${answer.status})`, answer.status];
};

/** Ask for something now, and again each half minute while somebody looks. Without a path nothing is asked yet. */
export const useAnswer = (path, seconds = 30) => {
  const [state, setState] = useState({ path: "", answer: null, wrong: "" });
  const [count, setCount] = useState(0);
  useEffect(() => {
    let left = false;
    if (!path) return undefined;
    const look = async () => {
      const [answer, wrong] = await ask(path);
      if (!left) setState((before) => ({ path, answer: answer ?? (before.path === path ? before.answer : null), wrong }));
    };
    look();
    const timer = setInterval(() => document.hidden || look(), seconds * 1000);
    return () => { left = true; clearInterval(timer); };
  }, [path, seconds, count]);
  return [state.path === path ? state : { answer: null, wrong: "" }, useCallback(() => setCount((n) => n + 1), [])];
};

export const figure = (value) => (value === null || value === undefined ? "" : Number(value).toLocaleString("en-US"));

const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];
/** Return seconds in words, by their two greatest units. */
export const span = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, size] of UNITS) {
    if (left >= size) { parts.push(`${Math.floor(left / size)} ${unit}`); left %= size; }
  }
  if (parts.length === 0) return `${left} s`;
  return parts.slice(0, 2).join(" ");
};
export const age = (at) => (at ? (Date.now() - Date.parse(at)) / 1000 : null);

/** Return the zone that is chosen in Airflow's menu; its pages keep it in the browser. */
const zone = () => {
  try {
    const chosen = JSON.parse(localStorage.getItem("timezone"));
    new Intl.DateTimeFormat("en", { timeZone: chosen ?? undefined });
    return chosen ?? undefined;
  } catch {
    return undefined;
  }
};
/** Write a time as Airflow's pages do. */
export const when = (at, timeZone = zone()) => {
  if (!at || Number.isNaN(Date.parse(at))) return "";
  const format = new Intl.DateTimeFormat("en", { timeZone, hourCycle: "h23", year: "numeric", month: "2-digit",
    day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const part = Object.fromEntries(format.formatToParts(new Date(at)).map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
};
export const Ago = ({ at }) => (at ? h("time", { dateTime: at, title: when(at) }, `${span(age(at))} ago`) : "");

export const dagPath = (dag) => `/dags/${encodeURIComponent(dag)}`;
/** A text in which the name of a DAG leads to it. */
export const WithLink = ({ text, dag }) => {
  const [before, ...after] = text.split(dag);
  return after.length === 0 ? text : h(Fragment, null, before, h(Link, { to: dagPath(dag) }, dag), after.join(dag));
};
/** What is said of a run of a paused DAG. */
export const Waits = ({ dag }) => h(WithLink, { dag, text: ` It waits: ${dag} is paused.` });
export const State = ({ state }) => h("span", { className: `badge ${state.replaceAll(" ", "-")}` }, state);

// Airflow's word for no schedule is Python's None; of a paused DAG no run comes.
export const scheduleOf = ({ schedule, paused }) => (paused ? "" : schedule && schedule !== "None" ? schedule : "none");

export const runPath = ({ dag_id, task_id }, run) => {
  const mapped = run.map_index >= 0 ? `/mapped/${run.map_index}` : "";
  const [dag, id, task] = [dag_id, run.run_id, task_id].map(encodeURIComponent);
  return `/dags/${dag}/runs/${id}/tasks/${task}${mapped}`;
};
// A template left by the form's defaults is not a name.
const plain = (text) => (text && !text.includes("{{") ? text : "");
export const nameOf = (stream) => stream.topic || plain(stream.written.topic) || stream.task_id;
export const tableOf = (stream) => stream.table || plain(stream.written.table) || "a table of each run";
/** The part of an address that names one of a task's tables. */
export const asking = (table) => (table ? `?${new URLSearchParams({ table })}` : "");
export const docs = (page) => `${base}lakestream/docs/${page}`;

/** A link to the section about the bundled DAGs. */
export const Bundled = ({ text }) => h("a", { href: docs("deploy.html#the-bundled-dags") }, text);

/** Send something to Airflow's own API, which asks whether the user may. */
export const send = (path, body) => ask(`api/v2/${path}`, {
  method: "POST",
  headers: { Accept: "application/json", "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

/** A line with the result of a press; screen readers read it out. */
export const useSaying = () => {
  const [said, setSaid] = useState({ text: "", bad: false });
  const line = h("p", { role: "status", className: said.bad ? "said error" : "said" }, said.text);
  return [line, useCallback((text, bad = false) => setSaid({ text, bad }), [])];
};
