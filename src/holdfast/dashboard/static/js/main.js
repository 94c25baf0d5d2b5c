/** The frame of the page: top bar, the screen of the route, dialogs. */
import { loadMe, me, may } from "./core/api.js";
import { useNow } from "./core/clock.js";
import { clock, zoneLabel } from "./core/format.js";
import { useKeys } from "./core/keys.js";
import { connection } from "./core/live.js";
import { isDark, preferences, toggleTheme } from "./core/prefs.js";
import { useModule } from "./core/resource.js";
import { href, route } from "./core/router.js";
import { useStore } from "./core/store.js";
import { html, render, useEffect, useErrorBoundary } from "./core/view.js";
import { IconButton, Problem } from "./parts/basics.js";
import { BottomBar } from "./parts/bottom-bar.js";
import { Help } from "./parts/help.js";
import { Icon, Logo } from "./parts/icons.js";
import { openOverlay, Overlays } from "./parts/overlay.js";
import { openPalette } from "./parts/palette.js";
import { openStart } from "./parts/start.js";
import { SignIn, signOut } from "./screens/sign-in.js";

/** @type {Record<string, () => Promise<{Screen: unknown}>>} each screen is loaded when it is first shown */
const SCREENS = {
  overview: () => import("./screens/overview.js"),
  runs: () => import("./screens/runs.js"),
  run: () => import("./screens/run.js"),
  workflows: () => import("./screens/workflows.js"),
  flow: () => import("./screens/flow.js"),
  workers: () => import("./screens/workers.js"),
  audit: () => import("./screens/audit.js"),
};

/** @type {[string, string, string][]} */
const PAGES = [["overview", "Overview", "home"], ["runs", "Runs", "list"], ["workflows", "Workflows", "code"], ["flow", "Flow", "gauge"], ["workers", "Workers", "chip"], ["audit", "Audit", "audit"]];

/** @param {string} page */
const pageHref = (page) => href(page === "overview" ? [] : [page]);

function LiveState() {
  const { state, asOf } = useStore(connection);
  const now = useNow();
  if (state === "reconnecting") return html`<span class="live off" role="status"><i class="dot"></i>as of ${clock(asOf)}, reconnecting</span>`;
  return html`<span class="live"><i class="dot"></i><span class="wide-only">Live</span> <span class="clock ink">${clock(now)}</span> <span class="wide-only ink3">${zoneLabel()}</span></span>`;
}

/** @param {{page: string}} props */
function TopBar({ page }) {
  const user = useStore(me);
  useStore(preferences);
  const known = user && user !== "signed-out" ? user : null;
  const title = PAGES.find(([key]) => key === page)?.[1] ?? "Runs";
  return html`<header class="top">
    <a class="brand" href=${pageHref("overview")}><${Logo} /><span class="wide-only">Holdfast</span><span class="narrow-only">${title}</span>${known?.app ? html`<span class="app">${known.app}</span>` : null}</a>
    <nav class="nav" aria-label="pages">${PAGES.map(([key, label]) => html`<a href=${pageHref(key)} aria-current=${key === page || (key === "runs" && page === "run") ? "page" : undefined}>${label}</a>`)}</nav>
    <div class="top-right">
      <button type="button" class="find" onClick=${openPalette}><${Icon} name="search" /><span class="grow wide-only">Find a run or a command</span><kbd class="wide-only">Ctrl K</kbd><span class="sr">Find a run or a command</span></button>
      <${LiveState} />
      <span class="wide-only"><${IconButton} icon=${isDark() ? "moon" : "sun"} label="Light or dark" onClick=${toggleTheme} /></span>
      ${known?.session ? html`<button type="button" class="avatar" title=${`Sign out ${known.actor ?? known.role ?? ""}`} aria-label="Sign out" onClick=${signOut}>${(known.actor ?? known.role ?? "?").slice(0, 2).toUpperCase()}</button>` : null}
    </div></header>`;
}

/** @param {{page: string}} props */
function CurrentScreen({ page }) {
  const { module, failure } = useModule(SCREENS, page);
  const [problem, reset] = useErrorBoundary();
  useEffect(reset, [page]);
  if (problem || failure) return html`<${Problem} error=${problem ?? failure} onRetry=${() => location.reload()} />`;
  return module ? html`<${module.Screen} />` : null;
}

function App() {
  const { path } = useStore(route);
  const user = useStore(me);
  const page = path[0] in SCREENS ? path[0] : "overview";
  useKeys({
    "Ctrl+k": () => openPalette(),
    "?": () => openOverlay(Help),
    n: () => may("create") && openStart(),
  });
  useEffect(() => {
    const parts = page === "run" ? path.slice(1) : [PAGES.find(([key]) => key === page)?.[1]];
    document.title = `${parts.join("/")} · Holdfast`;
  }, [page, path.join("/")]);
  /** @param {Event} event */
  const skip = (event) => {
    event.preventDefault();
    document.getElementById("main")?.focus();
  };
  if (user === "signed-out") return html`<${SignIn} /><${Overlays} />`;
  return html`<a class="skip" href="#/" onClick=${skip}>Skip to the content</a><${TopBar} page=${page} /><main id="main" tabindex="-1" class=${`screen-${page}`}>
    ${user === null ? null : html`<${CurrentScreen} page=${page} />`}</main><${BottomBar} page=${page} pages=${PAGES} hrefOf=${pageHref} /><${Overlays} />`;
}

const FIRST_RETRY = 1000;

async function start() {
  try {
    await loadMe();
  } catch {
    if (me.get() === null) setTimeout(start, FIRST_RETRY); // the server is starting
  }
}

render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
void start();
