"use strict";
// Plots are drawn when they come into sight; tables sort and are copied; tabs and toolbars go by arrow keys.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  const TOOLBAR = 34; // pixels above the data, in which plotly's tool bar has room
  let printing = false;

  // ------------------------------------------------------------------------------------------------------ elements
  function make(name, attributes, ...inner) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inner);
    return element;
  }

  function button(text, act, attributes = {}) {
    const element = make("button", { type: "button", class: "tool", ...attributes }, text);
    element.addEventListener("click", () => act(element));
    return element;
  }

  // One stop of the tab key for several buttons, among which arrow keys move (WAI-ARIA: tabs and toolbars).
  function roving(buttons, moved = () => {}) {
    const rest = (chosen) => buttons.forEach((one) => { one.tabIndex = one === chosen ? 0 : -1; });
    rest(buttons.find((one) => one.getAttribute("aria-selected") === "true") ?? buttons[0]);
    buttons.forEach((one, k) => {
      one.addEventListener("focus", () => rest(one));
      one.addEventListener("keydown", (event) => {
        const n = buttons.length;
        const next = { ArrowRight: k + 1, ArrowDown: k + 1, ArrowLeft: k - 1, ArrowUp: k - 1, Home: 0, End: n - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        buttons[(next + n) % n].focus();
        moved(buttons[(next + n) % n]);
      });
    });
  }

  // --------------------------------------------------------------------------------------------------------- plots
  function colors() {
    const night = dark.matches && !printing;
    const line = night ? "#2e343d" : "#e3e6ea";
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
    return { ink: night ? "#e6e9ef" : "#1c2330", axis };
  }

  function themed(layout) {
    const { ink, axis } = colors();
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Segoe UI', Roboto, sans-serif", size: 12, color: ink },
      hoverlabel: { font: { size: 12 } },
      margin: { ...layout.margin, t: Math.max(TOOLBAR, layout.margin?.t ?? 0) },
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    };
  }

  // As many names of places as an axis has room for: each of those in sight, else stages, else some of these.
  function ticks({ names, stages }, range, room) {
    const [low, high] = [...range].sort((a, b) => a - b);
    const first = Math.max(0, Math.ceil(low)), last = Math.min(names.length - 1, Math.floor(high));
    const cut = (text) => (room.width < 500 && text.length > 12 && !text.includes("&") ? `${text.slice(0, 5)}…${text.slice(-6)}` : text);
    let found = [];
    for (let k = first; k <= last; k++) found.push([k, names[k]]);
    if (found.length * room.gap > room.length) {
      found = stages.map(([start, name], k) => [Math.max(start, first), Math.min((stages[k + 1]?.[0] ?? names.length) - 1, last), name])
        .filter(([from, to]) => from <= to).map(([from, to, name]) => [(from + to) / 2, name]);
    }
    const least = (room.gap * (high - low)) / room.length; // between two names, in places
    let latest = -Infinity;
    found = found.filter(([at]) => at - latest >= least && ((latest = at), true));
    return { vals: found.map(([at]) => at), text: found.map(([, name]) => cut(name)) };
  }

  function fitted(plot, layout, sizes = {}) {
    const wide = plot.clientWidth, change = {};
    for (const [axis, names] of Object.entries(layout.meta ?? {})) {
      const range = plot.layout?.[axis]?.range ?? layout[axis].range;
      const length = sizes[axis] ?? (axis === "xaxis" ? wide - 150 : plot.clientHeight - 110);
      const gap = axis === "xaxis" ? 18 : 13; // slanted names need more
      const { vals, text } = ticks(names, range, { length, gap, width: wide });
      change[`${axis}.tickvals`] = vals;
      change[`${axis}.ticktext`] = text;
    }
    return change;
  }

  function refit(plot) {
    const spec = drawn.get(plot);
    if (!spec?.layout.meta || plot.offsetParent === null) return;
    const { xaxis, yaxis } = plot._fullLayout;
    const change = fitted(plot, spec.layout, { xaxis: xaxis._length, yaxis: yaxis._length });
    for (const [key, value] of Object.entries(change)) {
      const [axis, what] = key.split(".");
      if (String(plot.layout[axis][what]) === String(value)) delete change[key];
    }
    const notes = spec.layout.annotations ?? [];
    if (notes.length) { // numbers in cells, where cells have room for them
      const cell = (axis) => axis._length / Math.abs(axis.range[1] - axis.range[0]);
      const widest = Math.max(...notes.map((note) => note.text.length));
      const visible = cell(xaxis) >= 7 * widest && cell(yaxis) >= 15;
      if ((plot.layout.annotations[0].visible ?? true) !== visible) change.annotations = notes.map((note) => ({ ...note, visible }));
    }
    if (Object.keys(change).length) Plotly.relayout(plot, change);
  }

  // The text of a script element: as it stands, or compressed.
  async function contents(element) {
    const text = element.textContent.trim();
    if (element.type === "application/json") return text;
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  async function draw(plot) {
    if (drawn.has(plot) || plot.offsetParent === null) return;
    drawn.set(plot, null);
    const { data, layout } = JSON.parse(await contents(plot.nextElementSibling));
    const [map] = data.filter((trace) => trace.type === "heatmap");
    if (map && layout.meta) {
      const { xaxis: x, yaxis: y } = layout.meta, full = [layout.xaxis.ticktext, layout.yaxis.ticktext];
      map.text = map.z.map((row, i) => row.map((_, j) => `${y.title}: ${full[1][i]}<br>${x.title}: ${full[0][j]}`));
      tools(plot, map, layout);
    }
    for (const [key, value] of Object.entries(fitted(plot, layout))) {
      const [axis, what] = key.split(".");
      layout[axis][what] = value;
    }
    drawn.set(plot, { data, layout });
    // Nothing on this page leaves it: no button that shares a chart with a server.
    const removed = ["select2d", "lasso2d", "sendChartToCloud", "sendDataToCloud"];
    const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: removed };
    await Plotly.newPlot(plot, data, themed(layout), options);
    label(plot);
    refit(plot);
    plot.on("plotly_relayout", () => refit(plot));
    plot.dataset.drawn = "true";
  }

  function label(plot) {
    const buttons = Array.from(plot.querySelectorAll(".modebar-btn"));
    for (const one of buttons) {
      one.setAttribute("aria-label", one.dataset.title ?? "");
      one.setAttribute("role", "button");
      one.addEventListener("keydown", (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); one.click(); } });
    }
    plot.querySelector(".modebar")?.setAttribute("role", "toolbar");
    plot.querySelector(".modebar")?.setAttribute("aria-label", `Tools of ${plot.getAttribute("aria-label")}`);
    if (buttons.length) roving(buttons);
  }

  // Beside a heat map: its own colour scale, and its own size.
  function tools(plot, map, layout) {
    const given = [map.zmin, map.zmax], known = map.z.flat().filter((v) => v !== null);
    const own = [Math.min(...known), Math.max(...known)];
    const bar = make("div", { class: "tools", role: "group", "aria-label": plot.getAttribute("aria-label") });
    plot.classList.add("map");
    const rescale = (one) => {
      const pressed = one.getAttribute("aria-pressed") !== "true", [low, high] = pressed ? own : given;
      one.setAttribute("aria-pressed", String(pressed));
      [map.zmin, map.zmax] = [low, high];
      for (const note of layout.annotations ?? []) note.font.color = (map.z[note.y][note.x] - low) / (high - low) < 0.435 ? "#ffffff" : "#000000";
      recolor(plot);
    };
    if (known.length && own[0] < own[1] && own[1] - own[0] < 0.95 * (given[1] - given[0])) {
      bar.append(button("Colours over these values only", rescale, { "aria-pressed": "false" }));
    }
    bar.append(button("Larger", (one) => {
      const pressed = one.getAttribute("aria-pressed") !== "true";
      one.setAttribute("aria-pressed", String(pressed));
      plot.closest("figure").classList.toggle("large", pressed);
      plot.closest(".grid > div")?.classList.toggle("whole", pressed);
      Plotly.Plots.resize(plot).then(() => refit(plot));
    }, { "aria-pressed": "false" }));
    plot.before(bar);
  }

  const drawAll = () => Promise.all(Array.from(document.querySelectorAll(".plot"), draw));

  function recolor(only) {
    for (const [plot, spec] of drawn) {
      if (!spec || (only && plot !== only)) continue;
      const axes = {};
      for (const axis of ["xaxis", "yaxis"]) axes[axis] = { ...spec.layout[axis], range: plot.layout[axis].range };
      Plotly.react(plot, spec.data, themed({ ...spec.layout, ...axes })).then(() => { label(plot); refit(plot); });
    }
  }

  function say(text) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = text;
    trouble.hidden = false;
  }

  async function unpack() {
    if (!("DecompressionStream" in window)) {
      say("This browser cannot unpack the plots (it has no DecompressionStream). Firefox 113, Chrome 80, Safari 16.4 or newer can. The tables below need nothing.");
      return false;
    }
    for (const place of document.querySelectorAll(".network")) {
      drawNetwork(place, JSON.parse(await contents(place.nextElementSibling)), make, button, roving);
    }
    const plotly = document.getElementById("plotly");
    if (!plotly) return true;
    const script = document.createElement("script");
    script.textContent = await contents(plotly);
    document.head.append(script);
    return true;
  }

  // -------------------------------------------------------------------------------------------------------- tables
  const value = (cell) => cell.dataset.value ?? cell.textContent.trim();

  function order(table, column, up) {
    const known = (text) => text !== "" && !Number.isNaN(Number(text));
    const rows = Array.from(table.tBodies[0].rows, (row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // empty cells last, both ways
      const sign = known(a) && known(b) ? a - b : a.localeCompare(b, undefined, { numeric: true });
      return up ? sign : -sign;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
    Array.from(table.tHead.rows[0].cells).forEach((head, k) => {
      if (k === column) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  }

  const cells = (table) => Array.from(table.rows, (row) => Array.from(row.cells, value));
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  function download(text, name) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  async function copy(text, one) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // a page of a file may not have a clipboard
      const area = make("textarea", {}, text);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    one.textContent = "Copied";
    setTimeout(() => { one.textContent = "Copy"; }, 1500);
  }

  function equip(table, k) {
    const box = table.parentElement, head = box.previousElementSibling;
    if (box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight && box.offsetParent) box.removeAttribute("tabindex");
    if (table.tBodies[0].rows.length < 2) return;
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const sort = button("", () => order(table, column, head.getAttribute("aria-sort") !== "ascending"), { class: "sort" });
      sort.append(...head.childNodes);
      head.append(sort);
    });
    const bar = make("div", { class: "tools", role: "group", "aria-label": `Take along: ${box.getAttribute("aria-label")}` });
    bar.append(
      button("Copy", (one) => copy(cells(table).map((row) => row.join("\t")).join("\n"), one)),
      button("CSV", () => download(cells(table).map((row) => row.map(quoted).join(",")).join("\n") + "\n", `table-${k + 1}.csv`)),
    );
    head.append(bar);
  }

  // ---------------------------------------------------------------------------------------------------------- tabs
  function choose(tab) {
    const tabs = Array.from(tab.parentElement.children);
    const panels = Array.from(tab.parentElement.parentElement.children).filter((child) => child.getAttribute("role") === "tabpanel");
    tabs.forEach((other, k) => {
      other.setAttribute("aria-selected", String(other === tab));
      panels[k].hidden = other !== tab;
    });
    drawAll();
  }

  function tie(list, n) {
    const tabs = Array.from(list.children);
    const panels = Array.from(list.parentElement.children).filter((child) => child.getAttribute("role") === "tabpanel");
    tabs.forEach((tab, k) => {
      [tab.id, panels[k].id] = [`tab-${n}-${k}`, `panel-${n}-${k}`];
      tab.setAttribute("aria-controls", panels[k].id);
      panels[k].setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => choose(tab));
    });
    roving(tabs, choose);
  }

  function watch() {
    document.querySelectorAll("table").forEach(equip);
    document.querySelectorAll("[role=tablist]").forEach(tie);
    for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", drawAll);
    dark.addEventListener("change", () => recolor());
    let waiting;
    addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { for (const plot of drawn.keys()) refit(plot); }, 150); });
    addEventListener("beforeprint", () => { printing = true; recolor(); });
    addEventListener("afterprint", () => { printing = false; recolor(); });
  }

  watch();
  unpack()
    .then(async (ready) => {
      if (!ready) return;
      await drawAll();
      document.documentElement.dataset.ready = "true";
    })
    .catch((error) => say(`The plots could not be drawn: ${error}`));
})();
