const root = document.documentElement, button = document.getElementById("theme");
const wishes = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : wishes.matches;
const tell = () => button.setAttribute("aria-pressed", String(isDark()));
button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); });
wishes.addEventListener("change", tell);
// What must be scrolled to be read is reached by the keyboard; what fits is no stop on the way.
const stops = new ResizeObserver(seen => {
  for (const { target } of seen) {
    const hidden = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "scrolls"]])
      hidden ? target.setAttribute(name, value) : target.removeAttribute(name);
  }
});
document.querySelectorAll(".wide").forEach(box => stops.observe(box));
tell();
