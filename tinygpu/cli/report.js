"use strict";
// Draws the report from the JSON in #data, which is compressed, as the plotting library is.  All that is chosen stands in the address:
//   layer=NAME  a=, b=: two schedules  sort=, x=, y=: quantities (-: falling)  filter=QUANTITY:VALUE
//   show=term|ptx  lines=all  reach=whole
// Texts of the data become text nodes, never HTML.

let page = null;
const CONTEXT = 3; // equal lines that stay around a difference
const MOST_CELLS = 4e7; // of the table that a comparison of lines fills
const BEGINNING = 220; // events of a timeline that are shown at first

const at = (id) => document.getElementById(id);

// The text of a script that holds it in base64, compressed.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") && value != null) made.setAttribute(name, value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

// ---- numbers as text, as the command line writes them

function timeText(seconds) {
  for (const [unit, factor] of [["s", 1], ["ms", 1e3], ["us", 1e6]]) {
    const scaled = seconds * factor;
    if (scaled >= 1) return `${scaled.toFixed(scaled < 10 ? 3 : scaled < 100 ? 2 : 1)} ${unit}`;
  }
  return `${(seconds * 1e9).toFixed(1)} ns`;
}

function countText(count) {
  if (count < 1e7) return count.toLocaleString("en-US");
  const [digits, power] = count.toExponential(2).split("e+");
  return `${digits}e${power.padStart(2, "0")}`;
}

// Both ends of an interval, in the unit of the second.
function intervalText([low, high]) {
  const [unit, factor] = timeUnit(high);
  const digits = high * factor < 10 ? 2 : high * factor < 100 ? 1 : 0;
  return `${(low * factor).toFixed(digits)} to ${(high * factor).toFixed(digits)} ${unit}`;
}

const placeText = (row) => `${row.stands}${row.shared ? "=" : ""}`;
const rateText = (rate) => rate.toFixed(rate < 10 ? 2 : 1);

function timeUnit(seconds) {
  return seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
}

// ---- the state and the address

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const section = page.sections.find((one) => one.name === given.get("layer")) ?? page.sections[0];
  const number = (name) => {
    const n = Number(given.get(name));
    return Number.isInteger(n) && n >= 1 && n <= section.found.best.length ? n - 1 : null;
  };
  const chosen = given.has("a") || given.has("b") ? [number("a"), number("b")] : [0, 1];
  const filters = {};
  for (const text of given.getAll("filter")) {
    const colon = text.indexOf(":");
    filters[text.slice(0, colon)] = text.slice(colon + 1);
  }
  return {
    section,
    chosen: [...new Set(chosen)].filter((i) => i != null && i < section.found.best.length),
    sort: given.get("sort") ?? "rank",
    x: given.get("x"),
    y: given.get("y"),
    filters,
    show: given.get("show") === "ptx" ? "ptx" : "term",
    lines: given.get("lines") === "all" ? "all" : "changed",
    reach: given.get("reach") === "whole" ? "whole" : "beginning",
  };
}

function address(changes = {}) {
  const next = { ...state, ...changes };
  const given = new URLSearchParams({ layer: next.section.name });
  next.chosen.forEach((i, place) => given.set("ab"[place], i + 1));
  if (!next.chosen.length) given.set("a", 0);
  if (next.sort !== "rank") given.set("sort", next.sort);
  for (const name of ["x", "y"]) if (next[name]) given.set(name, next[name]);
  for (const [name, value] of Object.entries(next.filters)) given.append("filter", `${name}:${value}`);
  if (next.show !== "term") given.set("show", next.show);
  if (next.lines !== "changed") given.set("lines", next.lines);
  if (next.reach !== "beginning") given.set("reach", next.reach);
  return `#${given}`;
}

function go(changes) {
  history.replaceState(null, "", address(changes));
  render();
}

function toggle(i) {
  const others = state.chosen.filter((one) => one !== i);
  go({ chosen: others.length < state.chosen.length ? others : [...others, i].slice(-2) });
}

// ---- quantities: the columns of the table, the axes of the scatter

function quantities(section) {
  const rows = section.found.best;
  const work = rows[0].tflops * rows[0].predicted_seconds;
  const found = [];
  const add = (key, label, get, more) => {
    const values = rows.map(get).filter((value) => value != null);
    const number = values.every((value) => typeof value === "number");
    if (values.length) found.push({ key, label, get, number, text: String, ...more });
  };
  const time = { text: timeText, time: true };
  const rate = { text: rateText };
  const timed = rows.some((row) => row.seconds);
  add("rank", "#", (row) => rows.indexOf(row) + 1, { shown: true, axis: "rank" });
  add("stands", "stands", (row) => row.stands,
    { shown: true, axis: "place, those that tie together", of: (row) => placeText(row) });
  add("predicted", "predicted", (row) => row.predicted_seconds, { ...time, shown: true, axis: "predicted time" });
  add("interval", "90 % interval", (row) => row.interval_seconds[1],
    { ...time, shown: true, axis: "end of the 90 % interval", of: (row) => intervalText(row.interval_seconds) });
  add("tflops", "TFLOP/s", (row) => work / row.predicted_seconds,
    { ...rate, shown: !timed, axis: "predicted TFLOP/s" });
  add("measured", "measured", (row) => row.seconds, { ...time, shown: true, axis: "measured time" });
  add("measured_tflops", "TFLOP/s", (row) => row.seconds && work / row.seconds,
    { ...rate, shown: true, axis: "measured TFLOP/s" });
  add("ratio", "meas./pred.", (row) => row.seconds && row.seconds / row.predicted_seconds,
    { text: (ratio) => ratio.toFixed(3), shown: true, axis: "measured / predicted" });
  add("place", "place", (row) => row.place, { shown: true, axis: "place in the model's ranking" });
  add("bottleneck", "bottleneck", (row) => row.bottleneck, { shown: true, choice: true });
  if (new Set(rows.map((row) => row.machine)).size > 1) {
    add("machine", "machine", (row) => row.machine, { shown: true, choice: true });
  }
  add("registers", "registers", (row) => row.registers, { shown: true, narrow: true });
  add("spilled_bytes", "spilled B", (row) => row.spilled_bytes, { shown: rows.some((row) => row.spilled_bytes), narrow: true });
  add("smem_bytes", "smem B", (row) => row.smem_bytes, { shown: true, narrow: true, axis: "shared memory, B a CTA" });
  add("threads", "threads a CTA", (row) => row.threads);
  for (const name of decisionsOf(rows)) {
    const varies = new Set(rows.map((row) => row.decisions[name])).size > 1;
    const taken = found.some((one) => one.key === name); // a decision may be called threads
    const more = { shown: true, choice: true, decision: true, narrow: true };
    if (varies) add(taken ? `decision ${name}` : name, name, (row) => row.decisions[name], more);
  }
  for (const part of new Set(rows.flatMap((row) => Object.keys(row.parts_seconds)))) {
    add(`part ${part}`, `part: ${part}`, (row) => row.parts_seconds[part], { ...time });
  }
  return found;
}

const decisionsOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row.decisions)))];

function ordered(values) {
  return [...new Set(values)].sort((x, y) =>
    typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
}

function seenRows() {
  const { section, filters } = state;
  return section.found.best.filter((row) =>
    Object.entries(filters).every(([key, value]) => {
      const quantity = state.quantities.find((one) => one.key === key);
      return !quantity || String(quantity.get(row)) === value;
    }));
}

function sortedRows() {
  const falling = state.sort.startsWith("-");
  const key = state.sort.replace(/^-/, "");
  const quantity = state.quantities.find((one) => one.key === key) ?? state.quantities[0];
  const rank = (row) => state.section.found.best.indexOf(row);
  return seenRows().sort((p, q) => {
    const [x, y] = [quantity.get(p), quantity.get(q)];
    if (x == null || y == null) return (x == null) - (y == null) || rank(p) - rank(q);
    const order = quantity.number ? x - y : String(x).localeCompare(String(y));
    return (falling ? -order : order) || rank(p) - rank(q);
  });
}

// ---- the top of the page

function facts(rows) {
  return element("table", {}, rows.map(([name, ...texts]) =>
    element("tr", {}, element("th", { scope: "row" }, name), texts.map((text) => element("td", {}, text)))));
}

function table(head, rows) {
  const cell = (tag) => (content, place) =>
    element(tag, { class: head[place].startsWith("#") && "n" }, content ?? "");
  return element("table", {},
    element("thead", {}, element("tr", {}, head.map((name, i) => cell("th")(name.replace(/^#/, ""), i)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td"))))));
}

const peersOf = (section) => section.found.peers ?? [];
const fastest = (section) => Math.min(...section.found.best.map((row) => row.seconds ?? Infinity));

function bestPeer(section, took) {
  const [peer] = peersOf(section).filter((one) => one.seconds);
  if (!peer) return ["", "", ""];
  return [timeText(peer.seconds), took < Infinity ? `${(peer.seconds / took).toFixed(2)}x` : "", peer.name];
}

function overview() {
  const several = page.sections.length > 1;
  const timed = page.sections.some((one) => fastest(one) < Infinity);
  const beside = page.sections.some((one) => peersOf(one).length);
  const head = ["problem", "#schedules", "#admissible", "#predicted", "#90 % interval", "#TFLOP/s", "of the peak",
    "bottleneck",
    ...(timed ? ["#measured", "#TFLOP/s"] : []), ...(beside ? ["#best peer", "#speed-up", "which peer"] : [])];
  const rows = page.sections.map((one) => {
    const [first] = one.found.best;
    const work = first.tflops * first.predicted_seconds;
    const share = one.explanation.rate / one.explanation.peak;
    const took = fastest(one);
    return [
      element("a", { href: `#layer=${encodeURIComponent(one.name)}` }, one.title),
      countText(one.found.raw), countText(one.found.admissible), timeText(first.predicted_seconds),
      intervalText(first.interval_seconds), rateText(first.tflops),
      element("span", {}, element("span", { class: "share", style: `width:${90 * Math.min(share, 1)}px` }),
        ` ${(100 * share).toFixed(0)}%`),
      first.bottleneck,
      ...(timed ? (took < Infinity ? [timeText(took), rateText(work / took)] : ["", ""]) : []),
      ...(beside ? bestPeer(one, took) : []),
    ];
  });
  at("top").replaceChildren(
    element("h1", {}, page.title), element("p", {}, page.about),
    ...(several ? [element("div", { class: "scrolls", tabindex: 0, role: "region",
      "aria-label": "all problems" }, table(head, rows))] : []));
}

function layers() {
  at("layers").replaceChildren(...(page.sections.length > 1 ? page.sections : []).map((one) =>
    element("a", { href: `#layer=${encodeURIComponent(one.name)}`,
      "aria-current": one === state.section ? "page" : null }, one.name)));
}

function about() {
  const { section } = state;
  const { found } = section;
  const by = found.settled ? "until no single change of the best promised more" : "until the budget was spent";
  const how = found.evaluations ? `${found.evaluations} measured, ${by}` : found.proven
    ? "proven: under the model, none of the others is faster"
    : "not proven: the best that were met";
  const rows = [
    ["operation", found.operation],
    ["searched", `${countText(found.raw)} schedules, ${countText(found.admissible)} admissible, `
      + `${countText(found.scored)} scored; ${how}`],
    ...Object.entries(section.facts),
    ["measured", section.why_not ? `nothing: ${section.why_not}`
      : `on ${section.measured_on || "the device that is named at the end"}`],
    ...peersOf(section).map((peer) => ["peer", peer.seconds
      ? `${peer.name}: ${timeText(peer.seconds)}`
        + (fastest(section) < Infinity
          ? `; the fastest schedule is ${(peer.seconds / fastest(section)).toFixed(2)} times as fast` : "")
      : `${peer.name} failed`]),
  ];
  const links = Object.entries(section.links).flatMap(([text, href], i) =>
    [i ? ", " : "", element("a", { href }, text)]);
  if (links.length) rows.push(["files of the first", element("span", {}, links)]);
  at("about").replaceChildren(
    ...(page.sections.length > 1
      ? [element("h2", {}, section.title), element("p", {}, section.about)] : []),
    element("div", { class: "scrolls" }, facts(rows)));
  at("why").textContent = section.explanation.text;
}

// ---- the table

const classOf = (quantity) =>
  [quantity.number && "n", quantity.narrow && "narrow", quantity.told && "told"].filter(Boolean).join(" ") || null;

// Of the decisions the last few, as many as have no room, share one column that wraps.
function ranking(few = 0) {
  const { section, chosen } = state;
  const listed = state.quantities.filter((one) => one.shown);
  const together = listed.filter((one) => one.decision).slice(-few || Infinity);
  const told = { key: "told", label: "further decisions", told: true, get: (row) => together.filter(
    (one) => one.get(row) != null).map((one) => `${one.label}=${one.get(row)}`).join(" "), text: String };
  const shown = [...listed.filter((one) => !together.includes(one)), ...(together.length ? [told] : [])];
  const key = state.sort.replace(/^-/, "");
  const heads = shown.map((one) => {
    const sorted = one.key === key;
    const falling = sorted && state.sort.startsWith("-");
    return element("th", { class: classOf(one), scope: "col",
      "aria-sort": sorted ? (falling ? "descending" : "ascending") : "none" },
    element("button", { id: `sort ${one.key}`, title: `sort by ${one.axis ?? one.label}`,
      onclick: () => go({ sort: sorted && !falling ? `-${one.key}` : one.key }) },
    `${one.label}${sorted ? (falling ? " \u25be" : " \u25b4") : ""}`));
  });
  const filters = shown.map((one) => element("th", { class: classOf(one) }, one.choice ? filter(one) : null));
  const rows = sortedRows();
  const body = rows.map((row, n) => {
    const i = section.found.best.indexOf(row);
    const place = chosen.indexOf(i);
    const next = rows[n + 1]; // a line closes those that stand together
    const ends = (row.shared || next?.shared) && row.stands !== next?.stands ? "ends" : null;
    const box = element("input", { type: "checkbox", id: `choose ${i}`, checked: place >= 0,
      "aria-label": `compare schedule ${i + 1}`, onchange: () => toggle(i) });
    const cells = shown.map((one) => {
      const value = one.get(row);
      const failed = one.key === "measured" && value == null && row.reason;
      const text = value == null ? (failed ? "failed" : "") : one.of ? one.of(row) : one.text(value);
      return element("td", { class: classOf(one), title: failed || null }, text);
    });
    return element("tr", { class: [["a", "b"][marks().indexOf(i)], ends].filter(Boolean).join(" ") || null,
      onclick: (event) => { if (event.target !== box) toggle(i); } },
    element("td", {}, box), cells);
  });
  at("table").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "\u2713"), heads),
      element("tr", { class: "filters" }, element("th"), filters)),
    element("tbody", {}, body)));
  const over = at("table").scrollWidth - at("table").clientWidth;
  const columns = listed.filter((one) => one.decision).length;
  if (over > 0 && few < columns) {
    ranking(Math.min(columns, few + Math.ceil(over / 60)));
    return;
  }
  const head = at("table").querySelector("thead tr").offsetHeight;
  at("table").style.setProperty("--head", `${head}px`);
  const filtered = Object.entries(state.filters).map(([name, value]) => `${name} = ${value}`).join(", ");
  at("counts").replaceChildren(
    `${rows.length} of ${section.found.best.length} schedules`, filtered && `, those with ${filtered} `,
    filtered && element("button", { onclick: () => go({ filters: {} }) }, "show all"),
    ". A click on a column's name sorts; two rows can be chosen and compared below.",
    section.ties && element("strong", { id: "ties" }, ` ${section.ties}.`));
  const all = section.found.best;
  const same = decisionsOf(all).filter((name) => new Set(all.map((row) => row.decisions[name])).size === 1);
  at("common").textContent = same.length
    ? `All have ${same.map((name) => `${name}=${all[0].decisions[name]}`).join(" ")}.` : "";
  at("failures").replaceChildren(...all.flatMap((row, i) =>
    row.reason && !row.seconds ? [element("li", {}, `schedule ${i + 1} failed: ${row.reason}`)] : []));
}

const choices = (quantity) =>
  ordered(state.section.found.best.map(quantity.get).filter((value) => value != null)).map(String);

function filter(quantity) {
  const { key } = quantity;
  const values = choices(quantity);
  const choose = (event) => {
    const filters = { ...state.filters };
    delete filters[key];
    if (event.target.selectedIndex) filters[key] = values[event.target.selectedIndex - 1];
    go({ filters });
  };
  return element("select", { id: `filter ${key}`, "aria-label": `only ${quantity.label}`, onchange: choose },
    ["all", ...values].map((value, i) =>
      element("option", { selected: i ? state.filters[key] === value : !(key in state.filters) }, value)));
}

// ---- plots

function theme() {
  const css = getComputedStyle(document.documentElement);
  return Object.fromEntries(["text", "dim", "page", "raised", "line", "a", "b"].map(
    (name) => [name, css.getPropertyValue(`--${name}`).trim()]));
}

const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function plot(div, traces, layout) {
  const { text, dim, line, raised } = theme();
  const axis = { automargin: true, gridcolor: line, zerolinecolor: line, linecolor: line };
  return Plotly.react(div, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: 12 }, margin: { l: 8, r: 12, t: 24, b: 8 },
    hoverlabel: { align: "left", bgcolor: raised, bordercolor: line, font: { color: text } },
    hovermode: "closest",
    ...layout,
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: dim, activecolor: text },
  }, { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
}

const colour = (name) => page.palette.components[name] ?? page.palette.other;

function told(row, i) {
  const took = row.seconds ? `, ${timeText(row.seconds)} measured` : "";
  const words = state.quantities.filter((one) => one.decision).map((one) => `${one.label}=${one.get(row)}`);
  const predicted = `schedule ${i + 1}: ${timeText(row.predicted_seconds)} predicted${took}`;
  const lines = [predicted, `waits for ${row.bottleneck}`];
  for (let j = 0; j < words.length; j += 4) lines.push(words.slice(j, j + 4).join("  "));
  return lines.map(plain).join("<br>");
}

function axes() {
  const known = state.quantities;
  const measured = known.some((one) => one.key === "measured");
  const both = { key: "both", label: "predicted and measured", time: true, number: true };
  const pick = (name, options, fallback) =>
    options.find((one) => one.key === state[name]) ?? options.find((one) => one.key === fallback) ?? options[0];
  const ys = measured ? [...known, both] : known;
  const x = pick("x", known, measured ? "predicted" : (known.find((one) => one.decision)?.key ?? "rank"));
  const y = pick("y", ys, measured ? "measured" : "predicted");
  const select = (name, options, current) => element("label", {}, `${name}: `, element("select",
    { id: `axis ${name}`, onchange: (event) => go({ [name]: options[event.target.selectedIndex].key }) },
    options.map((one) => element("option", { selected: one === current }, one.axis ?? one.label))));
  at("axes").replaceChildren(select("y", ys, y), select("x", known, x));
  return [x, y];
}

function scatter() {
  const [x, y] = axes();
  const rows = seenRows();
  const all = state.section.found.best;
  const [predicted, measured] = ["predicted", "measured"].map((key) => state.quantities.find((one) => one.key === key));
  const ups = y.key === "both" ? [[predicted, "-open"], [measured, ""]] : [[y, ""]];
  const scaleOf = (quantity) => {
    if (!quantity.time) return [quantity.axis ?? quantity.label, 1];
    const [unit, factor] = timeUnit(Math.max(...all.flatMap((row) => [row.predicted_seconds, row.seconds ?? 0])));
    return [`${quantity.axis ?? quantity.label} [${unit}]`, factor];
  };
  const [xTitle, xScale] = scaleOf(x);
  const [yTitle, yScale] = scaleOf(y);
  const value = (quantity, scale, row) => {
    const got = quantity.get(row);
    return got == null ? null : quantity.choice ? String(got) : got * scale;
  };
  const { a, b, dim, line, page: paper } = theme();
  const traces = [];
  for (const name of ordered(rows.map((row) => row.bottleneck))) {
    const [paint, symbol] = colour(name);
    for (const [up, open] of ups) {
      const mine = rows.filter((row) => row.bottleneck === name && up.get(row) != null && x.get(row) != null);
      traces.push({
        type: "scatter", mode: "markers", name: ups.length > 1 ? `${name}, ${up.key}` : name, showlegend: true,
        x: mine.map((row) => value(x, xScale, row)), y: mine.map((row) => value(up, yScale, row)),
        customdata: mine.map((row) => all.indexOf(row)), text: mine.map((row) => told(row, all.indexOf(row))),
        hovertemplate: "%{text}<extra></extra>",
        marker: { color: paint, symbol: symbol + open, size: 11,
          line: { width: open ? 2 : 1, color: open ? paint : paper } },
      });
    }
  }
  marks().forEach((i, place) => {
    const row = all[i];
    for (const [up] of ups) {
      if (!rows.includes(row) || up.get(row) == null || x.get(row) == null) continue;
      traces.push({ type: "scatter", mode: "markers+text", x: [value(x, xScale, row)], y: [value(up, yScale, row)],
        text: [`<b>${"AB"[place]}</b>`], textposition: "top center", textfont: { size: 15, color: [a, b][place] },
        marker: { symbol: "circle-open", size: 20, color: [a, b][place], line: { width: 2.5 } },
        hoverinfo: "skip", showlegend: false });
    }
  });
  const shapes = [];
  const annotations = [];
  const firstX = rows.map((row) => value(x, xScale, row)).find((one) => one != null) ?? 0;
  if (["measured", "both"].includes(y.key)) {
    for (const peer of peersOf(state.section).filter((one) => one.seconds)) {
      const took = peer.seconds * yScale;
      traces.push({ type: "scatter", mode: "markers", x: [firstX], y: [took], // unseen: makes the axis reach it
        opacity: 0, hoverinfo: "skip", showlegend: false });
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: took, y1: took,
        line: { color: dim, dash: "dash", width: 1.5 } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", y: took, yanchor: "bottom", showarrow: false,
        text: plain(`${peer.name}: ${timeText(peer.seconds)}`), font: { color: dim } });
    }
  }
  if (x.key === "predicted" && ["measured", "both"].includes(y.key)) {
    const times = rows.flatMap((row) => [row.predicted_seconds, row.seconds ?? row.predicted_seconds]);
    const [low, high] = [Math.min(...times) * xScale, Math.max(...times) * xScale];
    shapes.push({ type: "line", x0: low, y0: low, x1: high, y1: high, line: { color: line, width: 1.5 } });
    annotations.push({ x: high, y: high, text: "measured = predicted", showarrow: false, xanchor: "right",
      yanchor: "top", font: { color: dim } });
  }
  const axisOf = (quantity, title) => quantity.choice
    ? { title: { text: plain(title) }, type: "category", categoryorder: "array",
      categoryarray: choices(quantity) }
    : { title: { text: plain(title) }, type: "linear" };
  const div = at("scatter");
  const drawn = plot(div, traces, { height: 460, shapes, annotations,
    legend: { orientation: "h", y: -0.18, yanchor: "top", x: 0 },
    xaxis: axisOf(x, xTitle), yaxis: axisOf(y, yTitle) });
  if (!div.dataset.listens) {
    div.dataset.listens = "1";
    drawn.then(() => div.on("plotly_click", ({ points }) => {
      if (points[0].customdata != null) toggle(points[0].customdata);
    }));
  }
}

// ---- two schedules side by side

// What to type for that which is not on the page.
function typed(words, details) {
  const files = details.map((one) => one.file);
  return files.every(Boolean) ? `tinygpu ${words} ${files.join(" ")} makes it`
    : "a schedule that is in store.db alone";
}

const marks = () => [...state.chosen].sort((i, j) => i - j); // A is the better ranked

function mark(place) {
  return element("span", { class: `mark ${"ab"[place]}` }, "AB"[place]);
}

function compared() {
  const { section } = state;
  const pair = marks();
  const rows = pair.map((i) => section.found.best[i]);
  const details = pair.map((i) => section.details[i]);
  if (!pair.length) {
    at("chosen").replaceChildren("Choose one or two schedules in the table or in the scatter.");
    for (const id of ["parts", "timelines", "layouts", "code", "show", "reach"]) {
      if (at(id).classList.contains("js-plotly-plot")) Plotly.purge(at(id));
      at(id).replaceChildren();
    }
    at("words").textContent = "";
    return;
  }
  chosen(pair, rows, details);
  words(pair, rows, details);
  parts(rows);
  timelines(pair, details);
  layouts(details);
  code(details);
}

function chosen(pair, rows, details) {
  const heads = pair.map((i, place) => element("span", {}, mark(place), " schedule ",
    details[place].file ? element("a", { href: details[place].file }, String(i + 1)) : String(i + 1)));
  const lines = [["", ...heads]];
  for (const one of state.quantities) {
    if (one.key === "rank" || one.key.startsWith("part ")) continue;
    const values = rows.map(one.get);
    if (values.every((value) => value == null)) continue;
    if (one.decision && values.every((value) => value === values[0])) continue;
    const texts = values.map((value, i) => (value == null ? "-" : one.of ? one.of(rows[i]) : one.text(value)));
    lines.push([one.axis ?? one.label, ...texts]);
  }
  const names = decisionsOf(rows);
  const same = names.filter((name) => rows.every((row) => row.decisions[name] === rows[0].decisions[name]));
  const both = rows.length > 1 ? "Both have" : "Its decisions:";
  at("chosen").replaceChildren(
    element("div", { class: "scrolls" }, facts(lines)),
    element("p", { class: "dim" }, `${both} ${same.map((name) => `${name}=${rows[0].decisions[name]}`).join(" ")}.`));
}

function words(pair, rows, details) {
  const text = state.section.words[pair.join(" ")];
  const other = pair.length < 2 ? "Choose a second schedule to compare it with."
    : rows[0].machine !== rows[1].machine ? "They are of two machines: no change of decisions leads from A to B."
      : `Not on this page: ${typed("explain", details)}.`;
  at("words").textContent = text ?? other;
}

function parts(rows) {
  const { a, b } = theme();
  const values = rows.map((row) => ({ predicted: row.predicted_seconds, measured: row.seconds, ...row.parts_seconds }));
  const largest = (name) => Math.max(...values.map((one) => one[name] ?? 0));
  const longest = Math.max(...rows.map((row) => row.predicted_seconds));
  const every = [...new Set(rows.flatMap((row) => Object.keys(row.parts_seconds)))]
    .filter((name) => largest(name) >= 0.002 * longest).sort((p, q) => largest(q) - largest(p));
  const names = ["predicted", ...(largest("measured") ? ["measured"] : []), ...every];
  const [unit, scale] = timeUnit(Math.max(...names.map(largest)));
  const label = (name) => ({ predicted: "<b>all together</b>", measured: "<b>measured</b>" }[name] ?? plain(name));
  const traces = values.map((one, place) => ({
    type: "bar", orientation: "h", name: "AB"[place],
    y: names.map(label), x: names.map((name) => (one[name] ?? 0) * scale),
    marker: { color: [a, b][place] }, text: names.map((name) => (one[name] ? timeText(one[name]) : "")),
    textposition: "outside", cliponaxis: false, hovertemplate: "%{y}: %{text}<extra></extra>",
  }));
  plot(at("parts"), traces, { height: 70 + 34 * names.length, barmode: "group", bargap: 0.25,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" }, showlegend: true,
    yaxis: { autorange: "reversed", ticks: "" },
    xaxis: { title: { text: `time [${unit}]` }, range: [0, 1.12 * scale * Math.max(...names.map(largest))] } });
}

// A statement's kind gives its colour: what it writes and its instruction, or its first words.
function kind(statement) {
  if (statement.startsWith("wait")) return "wait";
  if (statement.endsWith("more steps")) return "more steps, in the same rhythm";
  return statement.replace(/^(\w+)[^=]* = ([\w.]+)\(.*$/s, "$2 $1");
}

// Events as [row, statement, iteration, start, duration, flight or nothing], of their columns.
function eventsOf([rows, statements, iterations, steps, durations, flights]) {
  let start = 0;
  return rows.map((row, i) => {
    start += steps[i];
    const event = [row, statements[i], iterations[i], start, durations[i]];
    return flights[i] < 0 ? event : [...event, flights[i]];
  });
}

function timelines(pair, details) {
  const whole = state.reach === "whole";
  const lines = details.map((one) => one.timeline && { ...one.timeline, events: eventsOf(one.timeline.events) });
  const kinds = [...new Set(lines.flatMap((one) => one?.statements.map(kind) ?? []))];
  const end = Math.max(...lines.map((one) => {
    const starts = one?.events.map((event) => event[3]).sort((p, q) => p - q) ?? [];
    return whole ? one?.cycles ?? 0 : starts[BEGINNING] ?? one?.cycles ?? 0;
  }));
  const { text, line, raised } = theme();
  const painted = kinds.filter((name) => name !== "wait" && !name.startsWith("more steps"));
  const paint = (name) => (name === "wait" ? line : name.startsWith("more steps") ? raised
    : page.palette.colours[painted.indexOf(name) % page.palette.colours.length]);
  at("reach").replaceChildren(
    element("button", { id: "reach-button", "aria-pressed": whole,
      onclick: () => go({ reach: whole ? "beginning" : "whole" }) }, "all that was followed"),
    ...kinds.map((name) => element("span", { class: "key" },
      element("span", { style: `background:${paint(name)}` }), name)),
    element("span", { class: "dim" },
      "Thin and pale: on its way from memory. Drag to zoom, double-click to zoom out."));
  at("timelines").querySelectorAll(".plot").forEach((div) => Plotly.purge(div));
  at("timelines").replaceChildren(...lines.map((one, place) => element("figure", {},
    element("figcaption", {}, mark(place), ` schedule ${pair[place] + 1}`,
      one ? "" : `: not drawn here; ${typed("plot timeline", [details[place]])}`),
    one ? element("div", { class: "plot" }) : null)));
  lines.forEach((one, place) => {
    if (!one) return;
    const indices = one.statements.map((text) => kinds.indexOf(kind(text)));
    const traces = kinds.flatMap((name) => {
      const mine = one.events.filter((event) => event[3] <= end && kinds[indices[event[1]]] === name);
      const bars = (events, base, length, more) => ({
        type: "bar", orientation: "h", name, base: events.map(base), x: events.map(length),
        y: events.map((event) => one.rows[event[0]]),
        text: events.map((e) => `${plain(one.statements[e[1]])}<br>${plain(one.iterations[e[2]])}`),
        textposition: "none", hovertemplate: "%{text}<br>cycles %{base:.0f} to %{x:.0f}<extra></extra>", ...more,
      });
      const flying = mine.filter((event) => event.length > 5);
      return [
        ...(mine.length ? [bars(mine, (e) => e[3], (e) => Math.max(e[4], 1), { width: 0.72,
          marker: { color: paint(name), line: { width: name.startsWith("more") ? 1 : 0, color: line } } })] : []),
        ...(flying.length ? [bars(flying, (e) => e[3] + e[4], (e) => e[5],
          { width: 0.3, opacity: 0.35, marker: { color: paint(name) } })] : []),
      ];
    });
    const begins = one.begins.filter(([, cycles]) => cycles <= end).slice(0, 12);
    plot(at("timelines").querySelectorAll("figure")[place].querySelector(".plot"), traces, {
      height: 80 + 26 * one.rows.length, barmode: "overlay", showlegend: false,
      xaxis: { title: { text: "cycles since the CTA began", standoff: 4 }, exponentformat: "none",
        range: [0, 1.01 * end] },
      yaxis: { autorange: "reversed", categoryorder: "array", categoryarray: one.rows, ticks: "" },
      shapes: begins.map(([, cycles]) => ({ type: "line", x0: cycles, x1: cycles, yref: "paper", y0: 0, y1: 1,
        line: { color: text, dash: "dot", width: 1 } })),
      annotations: begins.map(([label, cycles]) => ({ x: cycles, xanchor: "left", yref: "paper", y: 1,
        yanchor: "bottom", text: plain(label), showarrow: false, font: { size: 10 } })),
    });
  });
}

function layouts(details) {
  const tile = ({ title, axes: [down, across], panels }) => element("div", {},
    element("h4", {}, `${title}; down: ${down}, across: ${across}`),
    element("div", { class: "panels" }, panels.map(grid)));
  at("layouts").replaceChildren(element("div", { class: "two" }, details.map((one, place) => element("div", {},
    element("p", {}, mark(place), !one.layouts ? " not drawn here: the first and the fastest are"
      : one.layouts.length ? "" : " nothing goes through shared memory"),
    (one.layouts ?? []).map(tile)))));
}

// A panel as a table: a number for each element, coloured by it.
function grid({ text, cells, size, paint }) {
  const few = cells.some((row) => row.some((number) => !paint[number]));
  let last = cells.length; // of a few elements, the rows that have some
  while (few && last > 1 && cells[last - 1].every((number) => !paint[number])) last -= 1;
  const cut = cells.length < size[0] || cells[0].length < size[1];
  const part = cut ? `; the first ${cells.length} x ${cells[0].length} of ${size.join(" x ")}` : "";
  return element("figure", {}, element("figcaption", {}, text + part),
    element("div", { class: "scrolls" }, element("table", { class: "grid" }, cells.slice(0, last).map((row, i) =>
      element("tr", {}, element("th", { scope: "row" }, i), row.map((number) => {
        const colour = paint[number];
        return element("td", { style: colour && `background:${colour};color:${onto(colour)}` }, colour ? number : "");
      }))))));
}

// Dark on light and light on dark.
function onto(colour) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "black" : "white";
}

// ---- code, and the lines in which it differs

// The numbers of virtual registers and labels are erased: they shift with every line before them.
const erased = (text) => text.replace(/%([a-z]+)\d+/g, "%$1").replace(/(\$[a-z_]+)_\d+/g, "$1");

// Pairs of lines [in A or null, in B or null]: a longest common subsequence.
function aligned(linesA, linesB) {
  const [a, b] = [linesA.map(erased), linesB.map(erased)];
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first += 1;
  let last = 0;
  const most = Math.min(a.length, b.length) - first;
  while (last < most && a[a.length - 1 - last] === b[b.length - 1 - last]) last += 1;
  const [n, m] = [a.length - first - last, b.length - first - last];
  if (n * m > MOST_CELLS) return null;
  const width = m + 1;
  const length = new Uint16Array((n + 1) * width); // of the longest from (i, j) on
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      length[i * width + j] = a[first + i] === b[first + j] ? length[(i + 1) * width + j + 1] + 1
        : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0; i < first; i += 1) pairs.push([linesA[i], linesB[i]]);
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && a[first + i] === b[first + j]) {
      pairs.push([linesA[first + i], linesB[first + j]]);
      i += 1;
      j += 1;
    } else if (i < n && (j === m || length[(i + 1) * width + j] >= length[i * width + j + 1])) {
      pairs.push([linesA[first + i], null]);
      i += 1;
    } else {
      pairs.push([null, linesB[first + j]]);
      j += 1;
    }
  }
  for (let k = last; k > 0; k -= 1) pairs.push([linesA[linesA.length - k], linesB[linesB.length - k]]);
  return closedUp(pairs);
}

// Lines that are in A alone stand beside lines that are in B alone.
function closedUp(pairs) {
  const found = [];
  for (let i = 0; i < pairs.length;) {
    const [less, more] = [[], []];
    for (; i < pairs.length && (pairs[i][0] === null || pairs[i][1] === null); i += 1) {
      if (pairs[i][0] !== null) less.push(pairs[i][0]);
      else more.push(pairs[i][1]);
    }
    for (let k = 0; k < Math.max(less.length, more.length); k += 1) {
      found.push([less[k] ?? null, more[k] ?? null, true]);
    }
    if (i < pairs.length) found.push([...pairs[i++], false]);
  }
  return found;
}

// Runs of equal lines become null and their count, but for the context of a difference.
function folded(pairs) {
  const near = pairs.map(() => false);
  pairs.forEach(([, , differs], i) => {
    if (differs) near.fill(true, Math.max(0, i - CONTEXT), i + CONTEXT + 1);
  });
  const found = [];
  pairs.forEach((pair, i) => {
    if (near[i]) found.push(pair);
    else if (found.length && found[found.length - 1].equal) found[found.length - 1].equal += 1;
    else found.push({ equal: 1 });
  });
  return found;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission: the old way
    const area = element("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
}

function code(details) {
  const { show, lines } = state;
  const press = (name, value, text) => element("button", { id: `${name} ${value}`,
    "aria-pressed": state[name] === value, onclick: () => go({ [name]: value }) }, text);
  const texts = details.map((one) => one[show]);
  const two = texts.length === 2 && texts.every((text) => text != null);
  const pairs = two ? aligned(...texts.map((text) => text.trimEnd().split("\n"))) : null;
  const differing = pairs?.filter(([, , differs]) => differs).length;
  at("show").replaceChildren(press("show", "term", "the terms"), press("show", "ptx", "the PTX"),
    ...(pairs ? [press("lines", "changed", "what differs"), press("lines", "all", "all lines"),
      element("span", { class: "dim" }, differing
        ? `${differing} lines differ, numbers of registers and labels aside.`
        : "No line differs, numbers of registers and labels aside.")] : []),
    ...(two && !pairs ? [element("span", { class: "dim" }, "Too long to compare line by line.")] : []));
  const shown = pairs && (lines === "all" ? pairs : folded(pairs));
  const listing = (place) => element("pre", {}, shown
    ? shown.map((pair) => {
      if (pair.equal) {
        return element("span", { class: "equal" }, `${pair.equal} equal line${pair.equal > 1 ? "s" : ""}`);
      }
      const kinds = pair[2] ? (pair[place] === null ? "none" : ["less", "more"][place]) : null;
      return element("span", { class: kinds }, pair[place] ?? "");
    })
    : texts[place].trimEnd().split("\n").map((line) => element("span", {}, line)));
  const scrolls = [];
  const follow = (event) => scrolls.forEach((other) => {
    if (other === event.target) return;
    other.scrollTop = event.target.scrollTop;
    other.scrollLeft = event.target.scrollLeft;
  });
  at("code").replaceChildren(element("div", { class: details.length > 1 ? "two" : "" }, details.map((one, place) => {
    if (texts[place] == null) {
      const why = one.failed ?? (show === "ptx" ? `not on this page: ${typed("emit", [one])}`
        : "not on this page, which has the terms of the first and of the fastest schedules");
      return element("div", {}, element("p", {}, mark(place), ` ${why}`));
    }
    const count = texts[place].trimEnd().split("\n").length;
    const box = element("div", { class: "listing", tabindex: 0, role: "region",
      "aria-label": `${show} of ${"AB"[place]}`, onscroll: follow }, listing(place));
    scrolls.push(box);
    return element("div", {}, element("p", { class: "controls" }, mark(place), `${count} lines`,
      element("button", { onclick: (event) => copy(texts[place], event.target) }, "copy")), box);
  })));
}

// ---- the bottom of the page

function runs() {
  const names = Object.keys(page.runs);
  const fields = [...new Set(names.flatMap((name) => Object.keys(page.runs[name])))];
  at("runs").replaceChildren(element("div", { class: "scrolls" }, facts([
    ...(names.length > 1 ? [["", ...names]] : []),
    ...fields.map((field) => [field, ...names.map((name) => String(page.runs[name][field] ?? ""))])])));
}

// ---- all of it

let state = null;
let drawn = "";

function render() {
  const focused = document.activeElement?.id;
  const before = state?.section;
  state = readState();
  state.quantities = quantities(state.section);
  if (state.section !== before) {
    layers();
    about();
  }
  ranking();
  scatter();
  const key = JSON.stringify([state.section.name, marks(), state.show, state.lines, state.reach]);
  if (key !== drawn) compared();
  drawn = key;
  if (focused) at(focused)?.focus({ preventScroll: true });
}

async function start() {
  page = JSON.parse(await unpacked("data"));
  for (const section of page.sections) { // its details come as columns, null where there is nothing
    const columns = Object.entries(section.details);
    section.details = section.found.best.map((_, i) => Object.fromEntries(
      columns.map(([name, values]) => [name, values[i] ?? undefined])));
  }
  const library = element("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);
  overview();
  runs();
  render();
  addEventListener("hashchange", () => render());
  addEventListener("resize", () => ranking());
  document.documentElement.dataset.ready = "1"; // all is drawn
}

if (typeof DecompressionStream === "undefined") {
  at("top").textContent = "This page unpacks itself with DecompressionStream: open it in a browser of 2023 or later.";
} else start();
