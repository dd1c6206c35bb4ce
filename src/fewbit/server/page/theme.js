// Sets dark or light before anything is painted: a plain script, since modules wait.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("fewbit.theme");
  } catch {
    // storage is off: as the system wants it
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
