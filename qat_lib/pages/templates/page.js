"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const relabel = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; relabel(); });
  relabel();

  for (const input of document.querySelectorAll("[data-filter]")) {
    const rows = document.getElementById(input.dataset.filter).tBodies[0].rows;
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      for (const row of rows) row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
    });
  }

  // The keyboard reaches a box that scrolls, and no other one.
  const boxes = document.querySelectorAll(".scroll");
  const mark = () => {
    for (const box of boxes) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", mark);
  mark();

  const view = document.getElementById("graph-view");
  const svg = view && view.querySelector("svg");
  if (!svg) return;
  const bar = document.querySelector(".graph-bar");
  bar.hidden = false;
  const width = svg.viewBox.baseVal.width;
  const height = svg.viewBox.baseVal.height;
  let zoom = 1;
  // Keeps the point (x, y) of the viewport where it is while the picture grows or shrinks under it.
  const setZoom = (value, x = view.clientWidth / 2, y = view.clientHeight / 2) => {
    const next = Math.min(4, Math.max(0.05, value));
    const left = (view.scrollLeft + x) / zoom;
    const top = (view.scrollTop + y) / zoom;
    zoom = next;
    svg.style.width = `${width * zoom}px`;
    svg.style.height = `${height * zoom}px`;
    view.scrollLeft = left * zoom - x;
    view.scrollTop = top * zoom - y;
  };
  const actions = {
    in: () => setZoom(zoom * 1.3),
    out: () => setZoom(zoom / 1.3),
    width: () => setZoom(Math.min(1.25, (view.clientWidth - 4) / width)),
    all: () => setZoom(Math.min((view.clientWidth - 4) / width, (view.clientHeight - 4) / height)),
  };
  bar.addEventListener("click", (event) => {
    const name = event.target.dataset.zoom;
    if (name) actions[name]();
  });
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = view.getBoundingClientRect();
    setZoom(zoom * Math.exp(-event.deltaY * 0.0025), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  let drag = null;
  view.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0) return;
    drag = { x: event.clientX + view.scrollLeft, y: event.clientY + view.scrollTop };
    view.classList.add("dragging");
    view.setPointerCapture(event.pointerId);
  });
  view.addEventListener("pointermove", (event) => {
    if (!drag) return;
    view.scrollLeft = drag.x - event.clientX;
    view.scrollTop = drag.y - event.clientY;
  });
  const release = () => { drag = null; view.classList.remove("dragging"); };
  view.addEventListener("pointerup", release);
  view.addEventListener("pointercancel", release);

  const detail = document.getElementById("graph-detail");
  const nodes = [...svg.querySelectorAll(".node")];
  const textOf = (node) => node.querySelector("title").textContent;
  const show = (event) => {
    const node = event.target.closest && event.target.closest(".node");
    if (node) detail.textContent = textOf(node);
  };
  svg.addEventListener("pointerover", show);
  svg.addEventListener("focusin", show);

  const center = (node) => {
    const box = node.getBBox();
    view.scrollTo({ left: (box.x + box.width / 2) * zoom - view.clientWidth / 2, top: (box.y + box.height / 2) * zoom - view.clientHeight / 2 });
  };

  // One node is in the order of the Tab key; the arrow keys move between nodes.
  let current = nodes[0];
  for (const node of nodes) node.tabIndex = node === current ? 0 : -1;
  svg.addEventListener("focusin", (event) => {
    current.tabIndex = -1;
    current = event.target.closest(".node") || current;
    current.tabIndex = 0;
  });
  const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
  svg.addEventListener("keydown", (event) => {
    const next = nodes[nodes.indexOf(current) + (steps[event.key] || NaN)];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  document.getElementById("find").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const found = nodes.filter((node) => textOf(node).toLowerCase().includes(wanted));
    for (const node of nodes) node.classList.toggle("dim", !found.includes(node));
    if (wanted && found.length) center(found[0]);
  });
  // Until somebody zooms, the picture follows the width of the window, with legible labels.
  let touched = false;
  bar.addEventListener("click", () => { touched = true; });
  new ResizeObserver(() => {
    if (touched) return;
    setZoom(Math.max(0.75, Math.min(1, (view.clientWidth - 4) / width)));
    center(nodes[0]);
  }).observe(view);
})();
