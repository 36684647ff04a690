// A worker of the lab: Python with minitrain in it, which answers questions one at a time.

import { begin } from './lab_engine.js';

const fetched = async name => {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
};

const engine = begin(fetched, new URL('./', import.meta.url).href, step => postMessage({ step })).then(
  answer => {
    postMessage({ ready: true });
    return answer;
  },
  error => postMessage({ failed: error.message }),
);

onmessage = async ({ data: [question, given] }) => {
  const answer = await engine;
  if (!answer) return;
  try {
    answer(question, given, message => postMessage({ message }));
    postMessage({ isOver: true });
  } catch (error) {
    postMessage({ failed: error.message });
  }
};
