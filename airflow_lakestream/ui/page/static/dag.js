// The tab of a DAG: its own streams. Airflow looks for the view's name in `globalThis`.
import { Lakestream } from "./lakestream.js";

globalThis.Streams = Lakestream;
