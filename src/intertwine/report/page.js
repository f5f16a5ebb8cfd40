"use strict";
// Unpacks plotly, draws every plot that is in sight, and the others when their tab or fold opens.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  let printing = false;

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
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    };
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
    drawn.set(plot, { data, layout });
    // Nothing on this page leaves it: no button that shares a chart with a server.
    const removed = ["select2d", "lasso2d", "sendChartToCloud", "sendDataToCloud"];
    const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: removed };
    await Plotly.newPlot(plot, data, themed(layout), options);
    plot.dataset.drawn = "true";
  }

  const drawAll = () => Promise.all(Array.from(document.querySelectorAll(".plot"), draw));

  function recolor() {
    for (const [plot, spec] of drawn) if (spec) Plotly.react(plot, spec.data, themed(spec.layout));
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
    const script = document.createElement("script");
    script.textContent = await contents(document.getElementById("plotly"));
    document.head.append(script);
    return true;
  }

  function choose(tab) {
    const tabs = Array.from(tab.parentElement.children);
    const panels = Array.from(tab.parentElement.parentElement.children).filter((child) => child.getAttribute("role") === "tabpanel");
    tabs.forEach((other, k) => {
      other.setAttribute("aria-selected", String(other === tab));
      panels[k].hidden = other !== tab;
    });
  }

  function watch() {
    for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => { choose(tab); drawAll(); });
    for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", drawAll);
    dark.addEventListener("change", recolor);
    addEventListener("beforeprint", () => { printing = true; recolor(); });
    addEventListener("afterprint", () => { printing = false; recolor(); });
  }

  unpack()
    .then(async (ready) => {
      if (!ready) return;
      watch();
      await drawAll();
      document.documentElement.dataset.ready = "true";
    })
    .catch((error) => say(`The plots could not be drawn: ${error}`));
})();
