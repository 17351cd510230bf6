// The page of pilot-discovery. Everything that it shows comes from other people: it is set as text, never as markup.
"use strict";

const rowsPerPage = 50;

// rows of each section by key, as the control plane sends them.
const rows = { status: new Map(), services: new Map(), proxies: new Map(), problems: new Map(), changes: new Map(), traffic: new Map() };

// el makes an element. Children are elements or texts; attributes that are null are left out.
function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    e.setAttribute(name, value === true ? "" : String(value));
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

const text = (cls, ...children) => el("span", { class: cls }, ...children);
// path is a path, an identity or a place, which is broken over lines after its slashes.
const path = (cls, s) => text(cls, s.split(/(?<=\/)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part])));
const line = (...children) => el("div", {}, ...children);
const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// duration is a time in the two largest units that it has.
function duration(ms) {
  let s = Math.max(0, Math.floor(ms / 1000));
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (s >= size && parts.length < 2) parts.push(`${Math.floor(s / size)} ${unit}`);
    else if (parts.length) break;
    s %= size;
  }
  return parts.join(" ") || "0 s";
}

// when shows a time as the distance from now; tick keeps it current.
function when(iso, form) {
  const e = el("time", { datetime: iso, "data-form": form || "ago", title: iso });
  e.textContent = relative(iso, form);
  return e;
}

function relative(iso, form) {
  const ms = Date.parse(iso) - Date.now();
  if (form === "until") return ms > 0 ? `in ${duration(ms)}` : `${duration(-ms)} ago`;
  if (form === "for") return duration(-ms);
  return `${duration(-ms)} ago`;
}

function tick() {
  for (const e of document.querySelectorAll("time[data-form]")) {
    const now = relative(e.getAttribute("datetime"), e.dataset.form);
    if (e.textContent !== now) e.textContent = now;
    if (e.dataset.form === "until") {
      const left = Date.parse(e.getAttribute("datetime")) - Date.now();
      e.className = left <= 0 ? "error" : left < 3600e3 ? "warn" : "";
    }
  }
}

// The sections. Each has columns, which make a cell's content of a row, and says in which order rows are shown.
const bad = { refused: "error", stuck: "error", "not asked": "warn", waiting: "warn", sent: "warn", synced: "ok" };

const inSync = (p) => !p.behind && !(p.refusal && p.refusal.holds) && !(p.quarantined || []).length && (p.types || []).every((t) => t.state === "synced");

const views = {
  services: {
    title: "Services",
    what: "The services, who may talk to them, mutual TLS, and versions. Choose one for its map.",
    none: "There is no service.",
    only: "Only those of the mesh",
    isOnly: (s) => !s.external,
    order: (a, b) => compare(a.namespace, b.namespace) || compare(a.host, b.host) || compare(a.key, b.key),
    columns: [
      ["Service", (s) => [
        line(el("a", { class: "name", href: "#services/" + encodeURIComponent(s.key), "data-focus": "open", "aria-current": s.key === chosenService() ? "true" : null }, s.host)),
        line(text("muted", [s.namespace, s.external ? "outside the mesh" : plural(s.endpoints, "endpoint"), (s.ports || []).join(", ")].filter(Boolean).join(" · "))),
        rows.traffic.has(s.key) ? line(requests(rows.traffic.get(s.key))) : null,
      ]],
      ["Who may talk to it", (s) => s.external ? text("muted", "not decided by the mesh") : short(s.access || [], 3), "wide"],
      ["Mutual TLS", (s) => s.external ? text("muted", "—") : (s.mutualTLS || []).length ? s.mutualTLS.map((m) => line(text({ STRICT: "ok", CLOSED: "error", gateway: "muted" }[m] || "warn", m))) : text("muted", "no endpoints")],
      ["Versions", (s) => versions(s)],
      ["Routes", (s) => (s.routes || []).length ? short(s.routes.map(route), 2) : text("muted", "to all endpoints"), "wide"],
    ],
    above: () => el("div", { id: "map", hidden: true }),
  },
  proxies: {
    title: "Proxies",
    what: "The connected proxies, and what they have of each type of resources.",
    none: "No proxy is connected.",
    only: "Only those that are not in sync",
    isOnly: (p) => !inSync(p),
    order: (a, b) => compare(inSync(a) ? 1 : 0, inSync(b) ? 1 : 0) || compare(a.name, b.name) || compare(a.key, b.key),
    columns: [
      ["Proxy", (p) => [line(text("name", p.name)), line(text("muted", [p.role, p.envoy ? "Envoy " + p.envoy : "", p.epoch ? "epoch " + p.epoch : "", p.older ? "older connection: being drained" : ""].filter(Boolean).join(", "))), p.identity ? line(path("muted mono", p.identity)) : null]],
      ["State", (p) => [
        line(inSync(p) ? text("ok", "in sync") : p.behind ? [text("warn", "behind"), " for ", when(p.behind.since, "for"), text("muted", ` (lacks generation ${p.behind.generation})`)] : text("warn", "not in sync")),
        el("ul", { class: "types", "aria-label": "Types" }, (p.types || []).map((t) => el("li", {}, t.name + " ", text("muted", String(t.resources)), " ", text(bad[t.state] || "", t.state)))),
      ], "wide"],
      ["Certificate ends", (p) => p.certificateEnds ? when(p.certificateEnds, "until") : text("muted", p.identity ? "not known: it connected with a token" : "none: plaintext")],
      ["Last refusal", (p) => refusal(p), "wide"],
      ["Connected", (p) => when(p.connected)],
    ],
  },
  changes: {
    title: "Changes",
    what: "The newest changes of the configuration, and how they have come to the proxies.",
    none: "Nothing has changed yet.",
    only: "Only those that some proxy has not applied",
    isOnly: (e) => missing(e) > 0,
    order: (a, b) => b.generation - a.generation,
    columns: [
      ["Generation", (e) => [line(text("name", String(e.generation))), line(when(e.at))]],
      ["Objects", (e) => [
        objects(e),
        e.count === 0 ? text("muted", "no object: what proxies have, or refuse, has changed") : null,
      ], "wide"],
      ["Work", (e) => [line(`${plural(e.runs, "rule")} run in ${ms(e.milliseconds)}`), line(text("muted", e.resources ? `${plural(e.resources, "resource")} moved, ${bytes(e.bytes)}` : "no resource moved"))]],
      ["Proxies", (e) => e.proxies === 0 ? text("muted", "for no proxy") : [
        line(text(missing(e) > 0 ? "warn" : "ok", `${e.applied.toLocaleString("en")} of ${e.proxies.toLocaleString("en")} applied`), e.applied ? ` in ${ms(e.appliedMilliseconds)}` : ""),
        e.gone ? line(text("muted", `${e.gone.toLocaleString("en")} left before`)) : null,
      ]],
    ],
  },
  problems: {
    title: "Problems",
    what: "What is wrong with the configuration, and what is in force meanwhile.",
    none: "Nothing is wrong.",
    only: "Only errors",
    isOnly: (p) => p.severity === "error",
    order: (a, b) => compare(a.severity, b.severity) || compare(a.object || "", b.object || "") || compare(a.key, b.key),
    columns: [
      ["Severity", (p) => text(p.severity === "error" ? "error" : "warn", p.severity)],
      ["Object", (p) => [p.object ? line(text("name", p.object)) : null, p.origin ? line(path("muted mono", p.origin)) : null]],
      ["Problem", (p) => [line(p.field ? [el("code", {}, p.field), ": "] : null, text("message", p.text)), p.meanwhile ? line(text("muted", "Meanwhile: " + p.meanwhile)) : null], "wide"],
    ],
  },
};

// short shows the first of some lines, and the others on request.
function short(lines, n) {
  const all = lines.map((l) => line(l));
  if (all.length <= n) return all;
  return [all.slice(0, n), el("details", {}, el("summary", {}, `and ${(all.length - n).toLocaleString("en")} more`), all.slice(n))];
}

function versions(s) {
  const list = s.versions || [];
  if (!list.length) return text("muted", s.endpoints ? "not labelled" : "none");
  return list.map((v) => line(v.name + " ", text("muted", `${v.endpoints.toLocaleString("en")} (${percent(100 * v.endpoints / s.endpoints)})`)));
}

// requests are a rate in words: how many there are in a second, and the part of errors.
const rate = (n) => (n >= 100 ? Math.round(n).toLocaleString("en") : n >= 10 ? n.toFixed(1) : n.toFixed(n >= 0.1 ? 2 : 3));
const share = (r) => { const p = 100 * r.errors / r.requests; return `${p < 0.1 ? "< 0.1" : p < 10 ? p.toFixed(1) : Math.round(p)}\u00a0%`; };
const requests = (r) => [text("number", `${rate(r.requests)} requests/s`), r.errors > 0 ? [", ", text("error number", `${share(r)} errors`)] : ""];

const percent = (n) => `${Math.round(n)}\u00a0%`;

// route is a route in words, with a bar for the parts of several destinations.
function route(r) {
  const to = r.to || [];
  const out = [r.name ? text("muted", r.name + ": ") : null, r.conditional ? text("muted", "some requests: ") : null,
    to.map((d, i) => [i ? ", " : "", d.name, to.length > 1 ? [" ", text("number", percent(d.percent))] : ""])];
  if (to.length > 1) {
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, to.map((d) => el("span", {})));
    [...bar.children].forEach((part, i) => { part.style.flexGrow = String(to[i].percent); });
    out.push(bar);
  }
  return out;
}

// The map of one service: those that may talk to it, and those that it may talk to, as a picture and as lists.
const chosenService = () => {
  const [section, key] = location.hash.slice(1).split("/");
  try {
    return section === "services" && key ? decodeURIComponent(key) : "";
  } catch {
    return ""; // no address that this page makes
  }
};
const answers = [["allowed", "ok"], ["depends", "warn"], ["denied", "error"], ["no endpoints", "muted"]];
const perAnswer = 50, perSide = 8;
let mapShown = "", mapOf = "", mapAsked = 0;

async function renderMap() {
  const key = chosenService(), at = document.getElementById("map"), s = rows.services.get(key);
  at.hidden = !s;
  if (!s) {
    mapOf = mapShown = "";
    mapAsked++;
    at.replaceChildren();
    at.removeAttribute("role");
    at.removeAttribute("aria-labelledby");
    return;
  }
  const asked = ++mapAsked;
  let got;
  try {
    const response = await fetch("neighbours?service=" + encodeURIComponent(key), { cache: "no-store" });
    if (!response.ok) throw new Error(await response.text());
    got = await response.json();
  } catch (e) {
    got = { failed: String(e.message || e) };
  }
  if (asked !== mapAsked) return; // another one is asked for
  const now = JSON.stringify([key, s.json, got, status().metrics]);
  if (now === mapShown) return;
  const another = mapOf !== key;
  const inside = at.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const open = new Set([...at.querySelectorAll("details[open]")].map((d) => d.dataset.key));
  mapShown = now;
  mapOf = key;
  const heading = el("h3", { id: "map-title", tabindex: -1, "data-focus": "title" }, s.host);
  at.setAttribute("role", "region");
  at.setAttribute("aria-labelledby", "map-title");
  at.replaceChildren(heading, el("p", {}, el("a", { href: "#services", "data-focus": "close" }, "Close the map")));
  if (got.failed) at.append(el("p", { class: "error" }, "The map cannot be read: " + got.failed));
  else {
    at.append(...picture(s, got), el("div", { class: "sides" }, side("May talk to it", "from", got.callers, got.from || {}, open), side("It may talk to", "to", got.callees, got.to || {}, open)));
    if (status().metrics) at.append(senders(got));
  }
  if ((s.policies || []).length) at.append(el("p", { class: "muted" }, "Policies: " + s.policies.join(", ")));
  if (another) heading.focus();
  else if (inside) [...at.querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === inside)?.focus();
}

// named are services with an answer, in order: those with the most requests first.
function named(map, answer, rates) {
  const of = (s) => (rates[s.key] || {}).requests || 0;
  return Object.keys(map).filter((k) => map[k] === answer && rows.services.has(k)).map((k) => rows.services.get(k)).sort((a, b) => of(b) - of(a) || views.services.order(a, b));
}

// senders are the workloads that requests come from, also those behind no service.
function senders(got) {
  const list = got.senders || [];
  return el("div", { class: "senders" }, el("h4", {}, "Requests by workload"),
    list.length ? el("ul", {}, list.map((w) => el("li", {}, w.workload, ": ", requests(w)))) : el("p", { class: "muted" }, "No requests are known."),
    got.moreSenders ? el("p", { class: "muted" }, `and ${plural(got.moreSenders, "workload")} more`) : null);
}

function side(title, name, map, rates, open) {
  return el("div", {}, el("h4", {}, title), answers.map(([answer, cls]) => {
    const list = named(map, answer, rates);
    if (!list.length) return null;
    const key = name + " " + answer;
    return el("details", { "data-key": key, open: open.size ? open.has(key) : list.length <= 12 && (answer !== "denied" || list.some((s) => rates[s.key])) },
      el("summary", {}, text(cls, answer), ` ${plural(list.length, "service")}`),
      el("ul", {}, list.slice(0, perAnswer).map((s) => el("li", {}, el("a", { href: "#services/" + encodeURIComponent(s.key), "data-focus": name + s.key }, s.host), rates[s.key] ? [": ", requests(rates[s.key])] : "", text("muted", " – " + about(s))))),
      list.length > perAnswer ? el("p", { class: "muted" }, `and ${(list.length - perAnswer).toLocaleString("en")} more`) : null);
  }), Object.keys(map).length ? null : el("p", { class: "muted" }, "nobody"));
}

// picture is the map as a drawing. The lists have the same, so that it is hidden from screen readers, and on narrow screens.
function picture(s, got) {
  // Those with requests come first; of those that are denied only they are drawn.
  const pick = (map, rates) => ["allowed", "depends", "denied"].flatMap((a) => named(map, a, rates).map((x) => [x, a, rates[x.key]])).filter(([, a, r]) => a !== "denied" || r)
    .sort((a, b) => (b[2] ? b[2].requests : 0) - (a[2] ? a[2].requests : 0));
  const left = pick(got.callers, got.from || {}), right = pick(got.callees, got.to || {}), rowHeight = 50;
  const width = status().metrics ? 1240 : 1000, middle = width / 2; // room for the rates on the edges
  const height = Math.max(2, Math.min(perSide, left.length) + (left.length > perSide ? 1 : 0), Math.min(perSide, right.length) + (right.length > perSide ? 1 : 0)) * rowHeight + 10;
  const svg = (tag, attributes, content) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, String(v));
    if (content !== undefined) e.textContent = content;
    return e;
  };
  const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "picture", "aria-hidden": "true", focusable: "false" });
  const cut = (t, n) => (t.length > n ? t.slice(0, n - 1) + "…" : t);
  const node = (x, y, of, cls) => {
    // For the mouse; by keyboard its link in the lists is reached. A link here would take the focus into what screen readers do not see.
    const g = svg("g", { class: "node " + cls });
    g.addEventListener("click", () => { location.hash = "services/" + encodeURIComponent(of.key); });
    g.append(svg("title", {}, of.host), svg("rect", { x: x - 145, y: y - 20, width: 290, height: 40, rx: 5 }),
      svg("text", { x, y: y - 3, "text-anchor": "middle" }, cut(of.host.replace(/\.svc\.[^ ]*$/, ""), 34)),
      svg("text", { x, y: y + 13, "text-anchor": "middle", class: "about" }, cut(about(of), 44)));
    out.append(g);
  };
  for (const [list, x, from] of [[left, 150, true], [right, width - 150, false]]) {
    list.slice(0, perSide).forEach(([other, answer, r], i) => {
      const y = 28 + i * rowHeight;
      out.append(svg("path", { d: from ? `M${x + 145} ${y} C${x + 200} ${y} ${middle - 180} ${height / 2} ${middle - 145} ${height / 2}` : `M${middle + 145} ${height / 2} C${middle + 180} ${height / 2} ${x - 200} ${y} ${x - 145} ${y}`, class: "edge " + { allowed: "always", depends: "sometimes", denied: "never" }[answer] }));
      if (r) out.append(svg("text", { x: from ? x + 152 : x - 152, y: y - 6, "text-anchor": from ? "start" : "end", class: r.errors > 0 ? "rate failing" : "rate" }, `${rate(r.requests)}/s${r.errors > 0 ? `, ${share(r)} errors` : ""}`));
      node(x, y, other, "");
    });
    if (list.length > perSide) out.append(svg("text", { x, y: 18 + perSide * rowHeight, "text-anchor": "middle", class: "more" }, `and ${(list.length - perSide).toLocaleString("en")} more`));
  }
  node(middle, height / 2, s, "center");
  const lines = [["always", "allowed"], ["sometimes", "depends on the request"], ["never", "denied, and asks anyway"]];
  return [out, el("p", { class: "legend", "aria-hidden": "true" }, lines.map(([cls, what]) => {
    const sample = svg("svg", { viewBox: "0 0 36 8", width: 36, height: 8 });
    sample.append(svg("path", { d: "M0 4 L36 4", class: "edge " + cls }));
    return el("span", {}, sample, " ", what);
  }))];
}

// about is a service in a few words: mutual TLS, and how its requests are split, or else which versions it has.
function about(s) {
  if (s.external) return "outside the mesh";
  const split = (s.routes || []).find((r) => !r.conditional && (r.to || []).length > 1);
  const short = (name) => (name.includes(" ") ? name.slice(name.lastIndexOf(" ") + 1) : name);
  const parts = split ? split.to.map((d) => `${short(d.name)} ${percent(d.percent)}`) : (s.versions || []).map((v) => v.name);
  return [(s.mutualTLS || []).join(" and ") || "no endpoints", parts.join(", ")].filter(Boolean).join(" · ");
}

// objects are those of a change: a few, and the others on request.
function objects(e) {
  const all = (e.objects || []).map((o) => line(o.object, o.removed ? text("warn", " removed") : "", o.origin ? [" ", path("muted mono", o.origin)] : null));
  if (e.count <= 3) return all;
  return [all.slice(0, 2), el("details", {}, el("summary", {}, `and ${(e.count - 2).toLocaleString("en")} more`), all.slice(2), e.count > all.length ? line(text("muted", `${plural(e.count - all.length, "object")} more are not listed`)) : null)];
}

const missing = (e) => Math.max(0, e.proxies - e.applied - (e.gone || 0));
const ms = (n) => (n >= 10000 ? `${(n / 1000).toFixed(1)}\u00a0s` : n >= 10 ? `${Math.round(n)}\u00a0ms` : `${n.toFixed(1)}\u00a0ms`);
const bytes = (n) => (n < 1000 ? `${n}\u00a0bytes` : n < 1e6 ? `${(n / 1000).toFixed(1)}\u00a0kB` : `${(n / 1e6).toFixed(1)}\u00a0MB`);

function refusal(p) {
  const out = [];
  if (p.refusal) {
    out.push(line(text(p.refusal.holds ? "error" : "muted", [p.refusal.type, (p.refusal.resources || []).join(", ")].filter(Boolean).join(" ")), " ", when(p.refusal.at), p.refusal.holds ? "" : text("muted", ", a later version is accepted")), line(text("message", p.refusal.message)));
  }
  if ((p.quarantined || []).length) out.push(line(text("warn", "in quarantine: "), p.quarantined.join(", ")));
  if ((p.notApplied || []).length) out.push(line(text("warn", "not applied of its ProxyConfig: "), p.notApplied.join(", ")));
  return out.length ? out : text("muted", "none");
}

// A View is the section of the page that shows rows as a table with a filter and pages.
class View {
  constructor(name, spec) {
    Object.assign(this, { name, spec, page: 0, made: new Map(), filter: "", only: false });
    this.heading = el("h2", { id: name + "-title", tabindex: -1 }, spec.title);
    this.count = el("p", { class: "count", role: "status" });
    const search = el("input", { type: "search", id: name + "-filter", autocomplete: "off", spellcheck: "false" });
    search.addEventListener("input", () => { this.filter = search.value.toLowerCase(); this.page = 0; this.render(); });
    const only = el("input", { type: "checkbox" });
    only.addEventListener("change", () => { this.only = only.checked; this.page = 0; this.render(); });
    this.back = el("button", { type: "button" }, "Previous page");
    this.next = el("button", { type: "button" }, "Next page");
    this.back.addEventListener("click", () => { this.page--; this.render(); });
    this.next.addEventListener("click", () => { this.page++; this.render(); });
    this.pager = el("div", { class: "tools", hidden: true }, this.back, this.next);
    this.body = el("tbody", { role: "rowgroup" });
    this.table = el("table", { role: "table", "aria-labelledby": name + "-title" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, spec.columns.map(([label]) => el("th", { role: "columnheader", scope: "col" }, label)))), this.body);
    this.none = el("p", { class: "empty" });
    this.section = el("section", { id: name, "aria-labelledby": name + "-title", hidden: true },
      this.heading, el("p", { class: "muted" }, spec.what), spec.above ? spec.above() : null,
      el("div", { class: "tools" }, el("label", { class: "grow" }, "Filter", search), spec.only ? el("label", {}, only, spec.only) : null), this.count, this.table, this.none, this.pager);
    document.getElementById("main").append(this.section);
  }

  // shown are the rows that the filter lets through, in order.
  shown() {
    const words = this.filter.split(/\s+/).filter(Boolean);
    const out = [];
    for (const row of rows[this.name].values()) {
      if (this.only && !this.spec.isOnly(row)) continue;
      if (words.length && !words.every((w) => searchable(row).includes(w))) continue;
      out.push(row);
    }
    return out.sort(this.spec.order);
  }

  render() {
    if (this.section.hidden) return;
    const all = this.shown(), total = rows[this.name].size, left = ((status().left || {})[this.name]) || 0;
    const pages = Math.max(1, Math.ceil(all.length / rowsPerPage));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const list = all.slice(this.page * rowsPerPage, (this.page + 1) * rowsPerPage);
    this.place(list);
    this.table.hidden = list.length === 0;
    this.none.hidden = list.length > 0;
    set(this.none, total === 0 ? (connected || rows.status.size ? this.spec.none : "") : "Nothing matches the filter.");
    let count = all.length === total ? `${total.toLocaleString("en")} in all` : `${all.length.toLocaleString("en")} of ${total.toLocaleString("en")}`;
    if (pages > 1) count += `, page ${this.page + 1} of ${pages}`;
    if (left) count += `; ${left.toLocaleString("en")} more are not sent, because there are too many`;
    set(this.count, rows.status.size ? count : ""); // before the first update nothing is known
    this.pager.hidden = pages === 1;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    if (this.spec.after) this.spec.after(this, list);
  }

  // place makes the table's body have exactly these rows. Those that have not changed stay, so that focus and selection do.
  place(list) {
    const kept = new Map();
    let at = this.body.firstChild;
    for (const row of list) {
      let made = this.made.get(row.key);
      if (!made || made.json !== drawn(row)) {
        const tr = this.row(row), old = made && made.tr;
        const focused = old && old.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
        if (old) {
          if (at === old) at = old.nextSibling;
          old.remove();
        }
        made = { tr, json: drawn(row), focused };
      }
      if (made.tr === at) at = at.nextSibling;
      else this.body.insertBefore(made.tr, at);
      if (made.focused !== undefined) {
        const again = [...made.tr.querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === made.focused);
        if (again) again.focus();
        made.focused = undefined;
      }
      kept.set(row.key, made);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    this.made = kept;
  }

  row(row) {
    return el("tr", { role: "row" }, this.spec.columns.map(([label, content, cls], i) => i === 0
      ? el("th", { role: "rowheader", scope: "row", class: cls }, content(row))
      : el("td", { role: "cell", "data-label": label, class: cls }, content(row))));
  }
}

// drawn is what a row is drawn from: that of a service also from its requests.
const drawn = (row) => row.json + (current === made.services && rows.traffic.has(row.key) ? rows.traffic.get(row.key).json : "");
const set = (e, s) => { if (e.textContent !== s) e.textContent = s; };
const searchable = (row) => row.search || (row.search = row.json.toLowerCase());
const status = () => rows.status.get("status") || {};

// What is above the sections.
function renderHeader() {
  const s = status();
  const facts = [["State", s.notServed ? text("error", "no proxy is served: " + s.notServed) : s.started ? text("ok", "serving") : "—"], ["Generation", String(s.generation ?? "—")]];
  if (s.started) facts.push(["Running for", when(s.started, "for")]);
  if (s.version) facts.push(["Version", s.version]);
  if (s.instance) facts.push(["Instance", s.instance]);
  document.getElementById("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  const notes = document.getElementById("notes");
  notes.replaceChildren(...(s.notes || []).map((n) => el("li", {}, n)));
  notes.hidden = !(s.notes || []).length;
}

function renderNav() {
  for (const [name, e] of Object.entries(links)) {
    const n = rows[name].size;
    // What needs somebody is seen from each section.
    const urgent = { proxies: [(p) => !inSync(p), () => "not in sync", "warn"], problems: [views.problems.isOnly, (k) => (k === 1 ? "error" : "errors"), "error"] }[name];
    const k = urgent ? [...rows[name].values()].filter(urgent[0]).length : 0;
    const label = `${views[name].title} ${n.toLocaleString("en")}`, more = k ? `(${k.toLocaleString("en")} ${urgent[1](k)})` : "";
    if (e.textContent !== label + (more && " ") + more) e.replaceChildren(label, ...(more ? [" ", text(urgent[2] + " number", more)] : []));
  }
}

let pending = false, paused = false, connected = false, lastEvent = 0;

function render() {
  pending = false;
  renderHeader();
  renderNav();
  current.render();
  if (current === made.services) renderMap();
  tick();
}

function schedule() {
  if (pending || paused) return;
  pending = true;
  requestAnimationFrame(render);
}

// Updates from the control plane.
let fresh = false; // the next update is the first of its connection, and has everything
let source;

function connect() {
  source = new EventSource("events");
  source.addEventListener("open", () => { fresh = true; heard(); });
  source.addEventListener("alive", heard);
  source.addEventListener("update", (e) => {
    heard();
    const update = JSON.parse(e.data);
    if (fresh) for (const section of Object.values(rows)) section.clear();
    fresh = false;
    for (const [section, change] of Object.entries(update)) {
      if (!Object.hasOwn(rows, section)) continue;
      const of = rows[section];
      for (const [key, row] of Object.entries(change.set || {})) of.set(key, Object.assign(row, { json: JSON.stringify(row), key }));
      for (const key of change.gone || []) of.delete(key);
    }
    schedule();
  });
  source.addEventListener("error", () => {
    lost();
    // The browser connects again by itself, unless it got a response that is none of events.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  });
}

function heard() {
  lastEvent = Date.now();
  if (!connected) {
    connected = true;
    tellConnection();
  }
}

function lost() {
  if (connected || !lastEvent) {
    connected = false;
    tellConnection();
  }
}

function tellConnection() {
  const e = document.getElementById("connection");
  e.className = connected ? "" : "lost";
  if (paused) set(e, "Paused: what is shown may be old");
  else if (connected) set(e, "Live");
  else set(e, lastEvent ? `Connection lost: what is shown is as of ${new Date(lastEvent).toLocaleTimeString("en-GB")}. Connecting again…` : "No connection to the control plane. Connecting again…");
}

// Sections are chosen by the fragment of the address.
let current;
const made = {}, links = {};

function choose(focus) {
  const name = location.hash.slice(1).split("/")[0];
  const chosen = Object.hasOwn(made, name) ? name : Object.keys(views)[0];
  for (const [n, view] of Object.entries(made)) {
    view.section.hidden = n !== chosen;
    if (n === chosen) links[n].setAttribute("aria-current", "page");
    else links[n].removeAttribute("aria-current");
  }
  current = made[chosen];
  document.title = `${current.spec.title} – Pilothouse`;
  current.render();
  if (current === made.services) {
    for (const a of document.querySelectorAll("#services tbody a.name")) {
      if (a.hash === location.hash) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
    renderMap();
  }
  if (focus && !chosenService()) current.heading.focus();
}

for (const [name, spec] of Object.entries(views)) {
  made[name] = new View(name, spec);
  links[name] = el("a", { href: "#" + name }, spec.title);
  document.getElementById("nav").append(el("li", {}, links[name]));
}
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); document.getElementById("main").focus(); });
document.getElementById("pause").addEventListener("click", (e) => {
  paused = !paused;
  e.currentTarget.setAttribute("aria-pressed", String(paused));
  tellConnection();
  schedule();
});
addEventListener("hashchange", () => choose(true));
choose(false);
renderHeader();
connect();
setInterval(() => {
  if (!paused) tick();
  if (connected && Date.now() - lastEvent > 30000) lost();
}, 1000);
