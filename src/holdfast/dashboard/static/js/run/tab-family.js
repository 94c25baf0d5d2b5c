/** The family of a run: ancestors, children, links, monitors, forks. */
import { number } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { runHref, splitPid } from "../core/router.js";
import { html } from "../core/view.js";
import { Empty, Moment, Place } from "../parts/basics.js";
import { Status } from "../parts/status.js";
import { text } from "../parts/text.js";

/** @param {{node: any, here?: boolean}} props */
function Relative({ node, here = false }) {
  const { workflow, id } = splitPid(node.pid);
  return html`<span class="row">${node.status ? html`<${Status} state=${node.status} />` : html`<span class="ink3">deleted</span>`}${here ? html`<b class="mono">${text(node.pid, 165)}</b>` : html`<a class="mono link" href=${runHref(workflow, id)}>${text(node.pid, 165)}</a>`}${node.createdAt ? html`<span class="ink3"><${Moment} at=${node.createdAt} /></span>` : null}</span>`;
}

/** @param {{title: string, nodes: any[] | undefined}} props */
function Group({ title, nodes }) {
  if (!nodes?.length) return null;
  return html`<section class="section"><h3>${title}</h3><ul>${nodes.map((node) => html`<li><${Relative} node=${node} /></li>`)}</ul></section>`;
}

/** @param {any} props */
export function Tab({ path, live }) {
  const family = useGet(path("family"), {}, `${live?.version} ${live?.status}`);
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="family"><${Place} resource=${family}>${(/** @type {any} */ data) => {
    const alone = !data.ancestors.length && !data.children.length && !data.links.length && !data.monitors.length && !data.watchedBy.length && !data.forks.length && !data.origin;
    return html`<section class="section"><h3>Tree</h3><${Branch} ancestors=${data.ancestors} self=${data.itself} children=${data.children} total=${data.childrenTotal ?? data.children.length} /></section>
      <${Group} title="Linked: they end together" nodes=${data.links} /><${Group} title="Monitored by this run" nodes=${data.monitors} /><${Group} title="Watches this run" nodes=${data.watchedBy} />
      <${Group} title="Origin" nodes=${data.origin ? [data.origin] : []} /><${Group} title="Forks" nodes=${data.forks} />${alone ? html`<${Empty} sentence="This run started no other run, and no run watches it." />` : null}`;
  }}<//></div>`;
}

/** @param {{ancestors: any[], self: any, children: any[], total: number}} props */
function Branch({ ancestors, self, children, total }) {
  const [first, ...rest] = ancestors;
  if (first) return html`<ul class="tree"><li><${Relative} node=${first} /><${Branch} ancestors=${rest} self=${self} children=${children} total=${total} /></li></ul>`;
  return html`<ul class="tree"><li><${Relative} node=${self} here=${true} /><ul class="tree">${children.map((child) => html`<li><${Relative} node=${child} /></li>`)}${total > children.length ? html`<li class="ink3">${number(total - children.length)} more</li>` : null}</ul></li></ul>`;
}
