"use strict";
// Reading off charts, zooming into them, sorting tables. The page is whole without any of it.
(() => {
  const make = (name, text, attributes = {}) => {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  const reading = (chart) => {
    const marks = [...chart.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    chart.querySelectorAll("title").forEach((title) => title.remove()); // a browser would show them beside the read-out
    const figure = chart.closest("figure");
    const output = make("output", "", { class: "readout", hidden: "" });
    chart.after(output);
    chart.setAttribute("tabindex", "0");
    let current = -1;
    const show = (place) => {
      if (current >= 0) marks[current].classList.remove("on");
      current = place;
      marks[current].classList.add("on");
      output.textContent = marks[current].dataset.tip;
      output.hidden = false;
      const [mark, frame] = [marks[current].getBoundingClientRect(), figure.getBoundingClientRect()];
      const middle = (mark.left + mark.right) / 2 - frame.left - output.offsetWidth / 2;
      output.style.left = `${Math.min(Math.max(middle, 0), frame.width - output.offsetWidth)}px`;
      output.style.top = `${Math.max(mark.top - frame.top - output.offsetHeight - 10, 0)}px`;
    };
    const hide = () => {
      output.hidden = true;
      if (current >= 0) marks[current].classList.remove("on");
    };
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    const distance = (mark, x, y) => {
      const box = mark.getBoundingClientRect();
      const gap = (value, low, high) => Math.max(low - value, 0, value - high);
      const bar = mark.classList.contains("bar");
      return gap(x, box.left, box.right) ** 2 + (bar ? 0 : gap(y, box.top, box.bottom) ** 2);
    };
    chart.addEventListener("pointermove", (event) => {
      const far = marks.map((mark) => distance(mark, event.clientX, event.clientY));
      show(far.indexOf(Math.min(...far)));
    });
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show((current + step + marks.length) % marks.length);
    });
  };

  const zooming = (chart) => {
    const whole = chart.viewBox.baseVal;
    const first = [whole.x, whole.y, whole.width, whole.height];
    let view = [...first];
    const draw = () => chart.setAttribute("viewBox", view.join(" "));
    const zoom = (factor, x = view[0] + view[2] / 2, y = view[1] + view[3] / 2) => {
      const width = Math.min(first[2], Math.max(first[2] / 12, view[2] * factor));
      const share = width / view[2];
      const place = (at, start, size, low, most) => Math.min(Math.max(at - (at - start) * share, low), low + most - size);
      const height = first[3] * (width / first[2]);
      view = [place(x, view[0], width, first[0], first[2]), place(y, view[1], height, first[1], first[3]), width, height];
      draw();
    };
    const at = (event) => {
      const box = chart.getBoundingClientRect();
      return [view[0] + ((event.clientX - box.left) / box.width) * view[2], view[1] + ((event.clientY - box.top) / box.height) * view[3]];
    };
    chart.addEventListener("dblclick", (event) => zoom(0.5, ...at(event)));
    chart.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, ...at(event));
    }, { passive: false });
    let held = null;
    chart.addEventListener("pointerdown", (event) => { held = view[2] < first[2] ? at(event) : null; });
    window.addEventListener("pointerup", () => { held = null; });
    chart.addEventListener("pointermove", (event) => {
      if (!held) return;
      const here = at(event);
      const inside = (value, low, most, size) => Math.min(Math.max(value, low), low + most - size);
      view[0] = inside(view[0] + held[0] - here[0], first[0], first[2], view[2]);
      view[1] = inside(view[1] + held[1] - here[1], first[1], first[3], view[3]);
      draw();
    });
    const tools = make("div", "", { class: "tools" });
    const actions = { "+": ["Zoom in", () => zoom(0.7)], "−": ["Zoom out", () => zoom(1 / 0.7)], "↺": ["Show all", () => { view = [...first]; draw(); }] };
    for (const [sign, [name, act]] of Object.entries(actions)) {
      const button = make("button", sign, { type: "button", "aria-label": name, title: name });
      button.addEventListener("click", act);
      tools.append(button);
    }
    chart.closest("figure").append(tools);
  };

  const sorting = (table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    if (body.rows.length < 4) return; // nothing to sort
    const key = (row, place) => row.cells[place].dataset.key;
    heads.forEach((head, place) => {
      const button = make("button", "↕", { type: "button", "aria-label": `Sort by ${head.textContent.trim()}` });
      head.append(button);
      button.addEventListener("click", () => {
        const falling = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => { other.removeAttribute("aria-sort"); other.querySelector("button").textContent = "↕"; });
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        button.textContent = falling ? "↓" : "↑";
        const numeric = head.classList.contains("number");
        const compare = (a, b) => {
          const [one, two] = [key(a, place), key(b, place)];
          if (one === "" || two === "") return (one === "") - (two === "");
          const order = numeric ? Number(one) - Number(two) : one.localeCompare(two, undefined, { numeric: true });
          return falling ? -order : order;
        };
        body.append(...[...body.rows].sort(compare));
      });
    });
  };

  const revealed = () => {
    const target = location.hash.startsWith("#def-") && document.getElementById(location.hash.slice(1));
    if (!target) return;
    target.closest("details").open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", revealed);
  revealed();

  document.querySelectorAll("svg.chart").forEach((chart) => { reading(chart); zooming(chart); });
  document.querySelectorAll("table[data-sortable]").forEach(sorting);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
})();
