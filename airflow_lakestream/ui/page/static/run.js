// The button that starts a run of a stream's DAG, and the form of its params, where it has some.
import { Fragment, Link, Waits, ask, dagPath, h, send, useEffect, useRef, useState } from "./common.js";

const kinds = ({ schema }) => [schema.type ?? "string"].flat();
const isText = (param) => kinds(param).includes("string");
/** Return a value as the text of its field: values other than text as JSON. */
const written = (param) => {
  const value = param.value ?? null;
  if (value === null) return "";
  return typeof value === "string" && isText(param) ? value : JSON.stringify(value);
};
/** Return the value of a field. An empty one is null if that is allowed. Throws if the text is not JSON. */
const read = (param, text) => {
  if (text === "" && (kinds(param).includes("null") || !isText(param))) return null;
  if (param.schema.enum) return param.schema.enum.find((one) => String(one) === text) ?? text;
  return isText(param) ? text : JSON.parse(text);
};

const Field = ({ name, param, text, change }) => {
  const { schema } = param, title = schema.title || name;
  const common = { value: text, onChange: (e) => change(e.target.value) };
  const number = kinds(param).some((kind) => kind === "integer" || kind === "number");
  const shown = (value) => schema.values_display?.[value] ?? String(value);
  return h("label", null, title,
    schema.enum ? h("select", common, schema.enum.map((value) => h("option", { key: value, value }, shown(value))))
      : kinds(param).includes("boolean") ? h("select", common, ["true", "false"].map((value) => h("option", { key: value, value }, value)))
        : kinds(param).some((kind) => kind === "array" || kind === "object") || schema.format === "multiline"
          ? h("textarea", { ...common, rows: 3 })
          : h("input", { ...common, type: number ? "number" : "text", step: number ? "any" : undefined }),
    param.description ? h("span", { className: "muted" }, param.description) : null);
};

const Form = ({ stream, params, start, leave, busy, refused }) => {
  const names = Object.keys(params);
  const [texts, setTexts] = useState(() => Object.fromEntries(names.map((name) =>
    [name, stream.conf[name] ?? written(params[name])])));
  const [wrong, setWrong] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const conf = {};
    for (const name of names) {
      try {
        // Unchanged values are left to the DAG.
        if (texts[name] !== written(params[name])) conf[name] = read(params[name], texts[name]);
      } catch {
        return setWrong(`${params[name].schema.title || name} has to be JSON.`);
      }
    }
    setWrong("");
    return start(conf);
  };
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return h("dialog", { ref: dialog, onClose: leave, "aria-label": `Run ${stream.dag_id}` }, h("form", { onSubmit: submit }, h("fieldset", { disabled: busy, className: "params" },
    h("legend", null, `Run ${stream.dag_id}`),
    names.map((name) => h(Field, { key: name, name, param: params[name], text: texts[name],
      change: (text) => setTexts((before) => ({ ...before, [name]: text })) })),
    wrong || refused ? h("p", { role: "alert", className: "error" }, wrong || refused) : null,
    h("div", { className: "tools" }, h("button", { type: "submit" }, "Start the run"),
      h("button", { type: "button", onClick: leave }, "Cancel")))));
};

/** Start a run: at once where the DAG has no params, else after its form. */
export const RunNow = ({ stream, say }) => {
  const [busy, setBusy] = useState(false);
  const [params, setParams] = useState(null);
  const [refused, setRefused] = useState("");
  const fail = (text) => (params ? setRefused(text) : say(text, true));
  const start = async (conf) => {
    setBusy(true);
    const [run, wrong, status] = await send(`dags/${encodeURIComponent(stream.dag_id)}/dagRuns`, { logical_date: null, conf });
    setBusy(false);
    if (status === 403) return fail(`You may not start runs of ${stream.dag_id}: your role has no permission for it.`);
    if (wrong) return fail(`${stream.dag_id} was not started: ${wrong}`);
    setParams(null);
    const where = `${dagPath(stream.dag_id)}/runs/${encodeURIComponent(run.dag_run_id)}`;
    const waits = stream.paused ? h(Waits, { dag: stream.dag_id }) : "";
    return say(h(Fragment, null, `A run of ${stream.dag_id} is started: `, h(Link, { to: where }, run.dag_run_id), ".", waits));
  };
  const press = async () => {
    setBusy(true);
    const [dag, wrong] = await ask(`api/v2/dags/${encodeURIComponent(stream.dag_id)}/details`);
    setBusy(false);
    if (wrong) return fail(`${stream.dag_id} was not started: ${wrong}`);
    setRefused("");
    if (Object.keys(dag.params ?? {}).length === 0) return start({});
    return setParams(dag.params);
  };
  // The conf that makes a run land there is unknown.
  if (stream.conf === null) return null;
  return h(Fragment, null,
    h("button", { type: "button", disabled: busy, onClick: press, "aria-label": `Run ${stream.dag_id} now` }, "Run now"),
    params ? h(Form, { stream, params, start, busy, refused, leave: () => setParams(null) }) : null);
};
