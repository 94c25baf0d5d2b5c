/** The code of a run after any of its facts: the source, the current line, local variables, a slider over the facts. */
import { get } from "../core/api.js";
import { clockMs, plural, toMs } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { useGet, useResource } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useRef } from "../core/view.js";
import { possible } from "../parts/actions.js";
import { Button, IconButton, Place } from "../parts/basics.js";
import { ErrorView } from "../parts/error.js";
import { brief } from "../parts/json.js";
import { LogLines } from "../parts/log-lines.js";
import { Source } from "../parts/source.js";
import { Glyph, Status } from "../parts/status.js";
import { text } from "../parts/text.js";
import { copy } from "./detail.js";
import { Scrubber } from "./scrubber.js";

const MOST_LINES = 3000;

/** @param {any} props */
export function Tab({ workflow, id, path, live, runNumber, act, target }) {
  const { query } = useStore(route);
  const wanted = query.get("fact");
  const replay = useGet(path("replay"), { until: wanted, runNumber }, wanted ?? live?.version);
  const facts = useGet(path("facts/all"), { pageSize: 100, runNumber }, live?.version);
  const delivered = (facts.data?.facts ?? []).filter((/** @type {any} */ fact) => fact.seq !== null).sort((/** @type {any} */ a, /** @type {any} */ b) => a.seq - b.seq);
  const data = replay.data;
  const total = data?.total ?? 0;
  const at = data?.position ?? 0;
  /** @param {number} next */
  const step = (next) => setQuery({ fact: next >= total ? null : Math.max(0, next) });
  useKeys({ ArrowLeft: () => step(at - 1), ArrowRight: () => step(at + 1), Home: () => step(0), End: () => step(total) });
  return html`<div class="scrubber"><span class="row"><${IconButton} icon="first" label="First fact" onClick=${() => step(0)} /><${IconButton} icon="back" label="Fact before" onClick=${() => step(at - 1)} /><${IconButton} icon="forward" label="Next fact" onClick=${() => step(at + 1)} /><${IconButton} icon="last" label="Last fact" onClick=${() => step(total)} /></span>
      <${Scrubber} facts=${delivered} total=${total} at=${at} onStep=${step} />
      <span class="num nowrap"><b>fact ${at}</b> <span class="ink3">of ${total}</span><br /><span class="mono ink2">${data?.fact?.at ? clockMs(toMs(data.fact.at)) : "start"}</span></span></div>
    <${Place} resource=${replay}>${() => html`<div class="split code"><${Code} path=${path} data=${data} runNumber=${runNumber} wanted=${wanted} onStep=${step} /><${Side} data=${data} act=${act} target=${target} command=${`holdfast replay ${workflow}/${id} --until ${at} --pdb`} /></div>`}<//>`;
}

const MOST_BADGES = 3;

/** The facts that one line of code received; of many, those around the position. @param {{facts: any[], at: number, onStep: (position: number) => void}} props */
function Badges({ facts, at, onStep }) {
  const end = Math.max(MOST_BADGES, facts.filter((each) => each.fact <= at).length);
  return html`<span class="badges">${facts.slice(end - MOST_BADGES, end).map((each) => html`<button type="button" class=${`tag ${each.fact === at ? "now" : each.fact < at ? "" : "later"} s-${each.ok ? "complete" : "errored"}`} aria-label=${`Go to fact ${each.fact}`} title=${text(each.stepKey, 100)} onClick=${() => onStep(each.fact)}>${each.fact}</button>`)}</span>`;
}

/** The last line before `end` that assigns each local variable of a function. @param {string[]} lines @param {any} frame @returns {Map<number, string>} */
function valuesOf(lines, frame) {
  /** @type {Map<string, number>} */
  const assigned = new Map();
  for (let number = frame.line - 1; number > 0; number -= 1) {
    const line = lines[number - 1] ?? "";
    if (line.includes(`def ${frame.function}(`)) break;
    const found = /^\s*(\w+)(?:: [^=]+)? = |^\s*for (\w+) in /.exec(line);
    const name = found?.[1] ?? found?.[2] ?? "";
    if (Object.hasOwn(frame.locals, name) && !assigned.has(name)) assigned.set(name, number);
  }
  return new Map([...assigned].map(([name, number]) => [number, `${name} = ${frame.locals[name]}`]));
}

/** @param {{path: (rest: string) => string, data: any, runNumber: number, wanted: string | null, onStep: (position: number) => void}} props */
function Code({ path, data, runNumber, wanted, onStep }) {
  const frames = data.stack?.tasks?.map((/** @type {any} */ task) => task.frames[task.frames.length - 1]).filter(Boolean) ?? [];
  const main = data.stack?.tasks?.find((/** @type {any} */ task) => task.frames.length)?.frames[0];
  const file = main?.file;
  const source = useResource(file ? `source ${file} ${path("")}` : null, (signal) => get(path("source"), { file, until: wanted, runNumber }, signal));
  const places = useGet(path("positions"), { runNumber }, data.total);
  const here = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const box = here.current?.parentElement; // only the code scrolls, and not a page that contains it
    if (box && here.current) box.scrollTop = here.current.offsetTop - box.clientHeight / 2;
  }, [main?.line, source.data]);
  if (!main) return html`<div class="code-main"><p class="empty">The code of the run has ended here, or this server does not have it.</p></div>`;
  const lines = (source.data?.text ?? "").split("\n").slice(0, MOST_LINES);
  const values = source.data ? valuesOf(lines, main) : new Map();
  /** @type {Map<number, any[]>} */
  const received = new Map();
  for (const each of places.data?.positions ?? []) {
    if (file.endsWith(each.position.file)) received.set(each.position.line, [...(received.get(each.position.line) ?? []), each]);
  }
  const waiting = new Map(frames.filter((/** @type {any} */ frame) => frame.file === file).map((/** @type {any} */ frame) => [frame.line, frame]));
  return html`<div class="code-main" tabindex="0" role="region" aria-label="source"><div class="code-file row"><code>${text(file.split("/").slice(-2).join("/"), 120)}</code><span class="ink3">${text(main.function, 80)}</span>${data.stack.difference ? html`<span class="right state s-errored">${text(data.stack.difference, 200)}</span>` : html`<span class="right"><${Status} state="complete" word=${`${data.position} of ${data.total} facts fit the code of this server`} /></span>`}</div>
    ${source.data ? lines.map((/** @type {string} */ line, /** @type {number} */ index) => {
      const number = index + 1;
      const current = number === main.line;
      const note = current ? `waits for ${data.stack.tasks[0]?.waitingFor ?? "its tasks"}` : waiting.has(number) ? "a task waits here" : null;
      return html`<div class=${`code-line ${current ? "here" : number > main.line ? "later" : ""}`} ref=${current ? here : undefined} aria-current=${current ? "true" : undefined}><${Badges} facts=${received.get(number) ?? []} at=${data.position} onStep=${onStep} /><span class="n mono">${number}</span><${Source} text=${line} />${note || values.has(number) ? html`<span class=${`value mono cut ${note ? "s-waiting" : ""}`}>${text(note ?? values.get(number), 100)}</span>` : null}</div>`;
    }) : html`<div class="code-line here"><span class="n mono">${main.line}</span><${Source} text=${main.source ?? ""} /></div>${source.error ? html`<p class="empty">${text(source.error.message, 200)}</p>` : null}`}</div>`;
}

/** @param {{data: any, act: (name: string) => void, target: any, command: string}} props */
function Side({ data, act, target, command }) {
  const fact = data.fact;
  const tasks = data.stack?.tasks ?? [];
  const locals = Object.entries(tasks.find((/** @type {any} */ task) => task.frames.length)?.frames[0]?.locals ?? {});
  const logs = (data.logs ?? []).filter((/** @type {any} */ line) => !line.isReplay).map((/** @type {any} */ line, /** @type {number} */ index) => ({ id: index, ...line }));
  return html`<aside class="code-side" aria-label="state of the run">
    <section>${fact ? html`<div class="row"><${Glyph} state=${fact.ok === false ? "errored" : "complete"} /><code class="medium">${text((fact.stepKey ?? fact.name).replace(/^#\w+ /, ""), 120)}</code><span>${fact.ok === false ? "failed" : fact.state === "start" ? "started" : "completed"}</span><span class="right ink3">${text(fact.type, 30)}</span></div>${fact.error ? html`<${ErrorView} error=${fact.error} />` : html`<p class="sunken mono">${brief(fact.result, 200)}</p>`}` : html`<p class="ink2">The run before its first fact.</p>`}</section>
    <section><h3>Tasks <span class="ink3">${tasks.length}</span></h3>${tasks.map((/** @type {any} */ task) => html`<div class="row"><${Glyph} state=${task.waitingFor ? "waiting" : "active"} /><code>${text(task.name, 60)}</code><span class="ink2 cut">${text(task.waitingFor ?? "runs", 120)}</span><code class="right ink3">${task.frames.length ? `${text(task.frames[task.frames.length - 1].file.split("/").pop(), 40)}:${task.frames[task.frames.length - 1].line}` : ""}</code></div>`)}</section>
    <section><h3>Locals</h3>${locals.length ? html`<dl class="locals mono">${locals.slice(0, 100).map(([name, value]) => html`<dt>${text(name, 60)}</dt><dd class="cut" title=${text(value, 1000)}>${text(value, 400)}</dd>`)}</dl>` : html`<p class="ink3">none</p>`}</section>
    ${logs.length ? html`<section><h3>Log so far <span class="ink3">${plural(logs.length, "line")}, replayed ones hidden</span></h3><${LogLines} lines=${logs.slice(-30)} brief=${true} /></section>` : null}
    <section class="row wrap">${possible("fork", target) ? html`<${Button} icon="fork" label="Fork from here…" onClick=${() => act("fork")} />` : null}<button type="button" class="chip mono" title="Copy the command" onClick=${() => copy(command)}>replay … --until ${data.position} --pdb</button></section></aside>`;
}
