"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touched = window.matchMedia("(pointer: coarse)").matches;
  const drawn = new Map();
  let plots = null;
  let library = null;

  const say = (text) => {
    const trouble = document.getElementById("trouble");
    trouble.textContent = text;
    trouble.hidden = false;
  };

  const unpacked = (name) => {
    const packed = atob(document.getElementById(name).textContent);
    const bytes = Uint8Array.from(packed, (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  const started = async () => {
    const script = document.createElement("script");
    script.textContent = await unpacked("library");
    document.head.append(script);
    return window.Plotly;
  };

  const template = () => {
    const style = getComputedStyle(document.documentElement);
    const [ink, soft, line, page] = ["ink", "soft", "line", "page"].map((name) =>
      style.getPropertyValue(`--${name}`).trim(),
    );
    const axis = {
      gridcolor: line,
      zerolinecolor: soft,
      linecolor: line,
      tickcolor: line,
      automargin: true,
      fixedrange: touched,
    };
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 8, r: 12, t: 24, b: 8, pad: 2 },
        xaxis: { ...axis, zeroline: false },
        yaxis: axis,
        legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
        hoverlabel: { bgcolor: page, bordercolor: soft, font: { color: ink }, align: "left" },
        // A finger that moves over a plot scrolls the page.
        dragmode: touched ? false : "zoom",
      },
    };
  };

  const config = {
    displaylogo: false,
    displayModeBar: false,
    showLink: false,
  };

  const show = (plotly, canvas, figure) =>
    plotly.react(canvas, figure.data, { ...figure.layout, template: template() }, config);

  const draw = async (canvas) => {
    plots ??= unpacked("plots").then(JSON.parse);
    library ??= started();
    const figure = (await plots)[canvas.dataset.plot];
    const plotly = await library;
    await show(plotly, canvas, figure);
    drawn.set(canvas, figure);
    canvas.dataset.drawn = "yes";
    resized.observe(canvas);
  };

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.clientWidth > 0) window.Plotly.Plots.resize(target);
    }
  });

  // What is far below, or in a closed section, is drawn when it comes into view.
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        draw(target).catch((problem) => say(`A plot cannot be drawn: ${problem}. The tables hold all numbers.`));
      }
    },
    { rootMargin: "400px" },
  );

  const openNamed = () => {
    const named = document.getElementById(location.hash.slice(1));
    if (named instanceof HTMLDetailsElement) {
      named.open = true;
      named.scrollIntoView();
    }
  };

  if (!("DecompressionStream" in window)) {
    say("This browser is too old to draw the plots; the tables hold all numbers.");
    return;
  }
  for (const canvas of document.querySelectorAll(".canvas")) {
    canvas.style.height = `${canvas.dataset.height}px`;
    seen.observe(canvas);
  }
  dark.addEventListener("change", async () => {
    for (const [canvas, figure] of drawn) await show(await library, canvas, figure);
  });
  window.addEventListener("hashchange", openNamed);
  openNamed();
})();
